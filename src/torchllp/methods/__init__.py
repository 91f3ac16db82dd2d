"""One file a method; this table names them without importing torch."""

import inspect
from typing import TYPE_CHECKING, Any

from torchllp.registry import Entry, Registry, check_options

if TYPE_CHECKING:
    from torchllp.methods.method import Method

METHODS = Registry(
    "method",
    {
        "ahil": Entry("torchllp.methods.ahil:AHIL", "L2P-AHIL: bag loss + pseudo-labels trusted by dual entropy"),
        "contrast": Entry(
            "torchllp.methods.contrast:Contrast", "our own for large bags: features by contrast, a head by the bags"
        ),
        "custom": Entry("torchllp.methods.custom:Custom", "any bag term, pseudo-labels and weights"),
        "dllp": Entry("torchllp.methods.dllp:DLLP", "DLLP: the bag-level proportion loss alone"),
        "flmm": Entry("torchllp.methods.flmm:FLMm", "FLMm: bag loss + supported labels, on frozen features"),
        "llp-dc": Entry("torchllp.methods.llp_dc:LLPDC", "LLP-DC: bag loss + confident labels that meet the counts"),
        "llp-mm": Entry("torchllp.methods.llp_mm:LLPMM", "LLP-MM: moments of the counts"),
        "llp-pvc": Entry("torchllp.methods.llp_pvc:LLPPVC", "LLP-PVC: how probable the counts are"),
        "llp-vat": Entry("torchllp.methods.llp_vat:LLPVAT", "LLP-VAT: bag loss + virtual adversarial training"),
        "llpfc": Entry("torchllp.methods.llpfc:LLPFC", "LLPFC: the bag as a noisy label, by forward correction"),
        "rlpl": Entry("torchllp.methods.rlpl:RLPL", "RLPL: bag loss + MixMatch on transported labels"),
        "rot": Entry(
            "torchllp.methods.rot:ROT", "ROT: bag loss + pseudo-labels by optimal transport to the bag's counts"
        ),
        "simclr": Entry("torchllp.methods.simclr:SimCLR", "SimCLR: features without labels, by `llp pretrain`"),
        "softmatch": Entry("torchllp.methods.softmatch:SoftMatch", "SoftMatch: bag loss + pseudo-labels by confidence"),
        "supervised": Entry("torchllp.methods.supervised:Supervised", "cross-entropy on the true labels (upper row)"),
    },
)


def list_methods() -> list[str]:
    """Names that :func:`create_method` knows.

    >>> list_methods()[:3]
    ['ahil', 'contrast', 'custom']
    """
    return METHODS.names()


def method_numbers(name: str) -> dict[str, Any]:
    """The numbers that a method takes, with their defaults.

    >>> method_numbers("ahil")["instance_weight"]
    0.5
    """
    parameters = inspect.signature(METHODS.load(name)).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def create_method(name: str, **numbers: Any) -> "Method":
    """The method called ``name``, with its numbers.

    >>> create_method("ahil", instance_weight=0.5, beta_bag=1.0, beta_instance=1.0)
    AHIL()
    """
    check_options(f"method {name!r}", numbers, method_numbers(name))
    return METHODS.load(name)(**numbers)
