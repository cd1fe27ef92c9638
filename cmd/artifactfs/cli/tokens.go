package cli

// TokenVariable is the name of the environment variable that contains the token for the remote. The variable is read once and then
// removed, so that no child process inherits it.
const TokenVariable = "ARTIFACTFS_TOKEN"

// SessionTokenVariable is the name of the environment variable that contains the token for the session remote.
const SessionTokenVariable = "ARTIFACTFS_SESSION_TOKEN"
