package cli

// TokenVariable is the name of the environment variable that contains the token for the remote. The variable is read
// once and then removed, so that no child process inherits it.
const TokenVariable = "ARTIFACTFS_TOKEN"

// SessionTokenVariable is the name of the environment variable that contains the token for the session remote.
const SessionTokenVariable = "ARTIFACTFS_SESSION_TOKEN"

// ForgeTokenVariable is the name of the environment variable that contains the token for the REST API of a forge such
// as GitHub.
const ForgeTokenVariable = "ARTIFACTFS_FORGE_TOKEN"

// These variables select the server of the commands repo, token, namespace and mount --create, and the token for its
// REST API.
const (
	ServerVariable          = "ARTIFACTFS_SERVER"
	ServerTokenVariable     = "ARTIFACTFS_SERVER_TOKEN"
	ServerTokenFileVariable = "ARTIFACTFS_SERVER_TOKEN_FILE"
)
