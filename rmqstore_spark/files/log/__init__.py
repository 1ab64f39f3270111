"""The log of a store on disk: one file after another, in one folder or several.

segments      a log that is split into segments, read by position
log_folders   decides which files of several folders make up the log
"""
