"""placeholder until the process backend lands"""
