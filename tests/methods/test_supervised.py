from methods.tester import MethodTester


class TestSupervised(MethodTester):
    name = "supervised"
