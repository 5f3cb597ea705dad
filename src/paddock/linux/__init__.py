"""linux"""
