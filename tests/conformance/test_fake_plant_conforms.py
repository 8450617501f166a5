"""The fake plant that tests of the loop use keeps the contract, so what they show holds for real plants too."""

from conformance.fake_plant import FakePlant
from conformance.suite import PlantCase, conformance_suite

TestFakePlant = conformance_suite(PlantCase("fake", FakePlant, settle=10.0))
TestSharedFakePlant = conformance_suite(PlantCase("shared", lambda: FakePlant(hosts=2, max_hosts=1000), 10.0, shared=True))
