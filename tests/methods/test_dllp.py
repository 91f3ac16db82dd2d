from methods.tester import MethodTester


class TestDLLP(MethodTester):
    name = "dllp"
    variants = [{}, {"bag_weighting": "size"}]
