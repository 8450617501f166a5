"""The evaluations of the papers, a folder each, and what they share: cases, assumptions, outcomes, pages, comparisons."""
