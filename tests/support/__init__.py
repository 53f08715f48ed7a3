"""Fakes and harnesses that several tests share."""
