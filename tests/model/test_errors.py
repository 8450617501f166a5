

def test_the_first_line_of_an_error_that_says_nothing_is_its_type():
    assert first_line(ValueError("\n  the plan is wrong \n== Plan ==")) == "the plan is wrong"
    assert first_line(ValueError()) == first_line(ValueError("\n")) == "ValueError"
