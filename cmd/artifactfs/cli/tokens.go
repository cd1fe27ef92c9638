package cli

// TokenVariable holds a token for the remote. It is read once and forgotten, so that no child process inherits it.
const TokenVariable = "ARTIFACTFS_TOKEN"

// SessionTokenVariable is the same for the session remote.
const SessionTokenVariable = "ARTIFACTFS_SESSION_TOKEN"
