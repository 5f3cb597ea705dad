"""keeper"""
