from typing import ClassVar

from methods.tester import CountTermTester, MethodTester


class TestDLLP(MethodTester):
    name = "dllp"
    variants: ClassVar = [{}, {"bag_weighting": "size"}]


class TestDLLPByCounts(CountTermTester):
    name = "dllp"
    variants: ClassVar = [{"bag_term": "count"}, {"bag_term": "count", "bag_weighting": "size"}]
    bag_loss_alone: ClassVar = {"bag_term": "count"}
