"""What errors say in one line."""

from elastream.errors import InputError, first_line, in_one_line


def test_the_first_line_of_an_error_that_says_nothing_is_its_type():
    assert first_line(ValueError("\n  the plan is wrong \n== Plan ==")) == "the plan is wrong"
    assert first_line(ValueError()) == first_line(ValueError("\n")) == "ValueError"


def test_an_error_of_java_is_its_message_and_not_the_call():
    text = "An error occurred while calling o90.repartition.\n: org.apache.spark.LostState: [LOST] No state.\n\tat org"
    assert first_line(RuntimeError(text)) == "LostState: [LOST] No state."


def test_an_error_for_users_is_its_sentence_and_others_show_their_type():
    assert in_one_line(InputError("there is no such file")) == "there is no such file"
    assert in_one_line(KeyError("h1")) == "KeyError: 'h1'"
    assert in_one_line(KeyError()) == "KeyError"
