package records

// writerEnv is set in the process that TestKilledWriter kills.
const writerEnv = "RECORDS_TEST_WRITER"

func writeInALoop() {}
