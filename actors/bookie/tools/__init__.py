"""Looking into the directories of a stopped bookie; changes nothing."""
