"""Text as tests compare it: without its line breaks."""


def one_line(text):
    """The text in one line, with single spaces."""
    return " ".join(str(text).split())
