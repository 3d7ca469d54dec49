"""The disk tier of the prefix cache: KV pages in files, which outlive memory and the process.

A page's bytes mean nothing here, and which pages belong together is the prefix cache's business.
"""
