"""Published autoscalers at their authors' defaults, to compare with. They are not recommended."""
