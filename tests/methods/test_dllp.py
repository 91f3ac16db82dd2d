from typing import ClassVar

from methods.tester import MethodTester


class TestDLLP(MethodTester):
    name = "dllp"
    variants: ClassVar = [{}, {"bag_weighting": "size"}]
