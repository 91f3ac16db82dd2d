from typing import ClassVar

from methods.tester import CountTermTester


class TestLLPPVC(CountTermTester):
    name = "llp-pvc"
    variants: ClassVar = [{}, {"bag_weighting": "size"}]
    # shown for dllp with this bag term
    test_a_equal_sizes = test_e_two_processes_have_the_gradient_of_one = None
