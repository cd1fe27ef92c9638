package mount

import (
	"time"

	"github.com/artifactfs/artifactfs/host/mount/takeover"
	"github.com/artifactfs/artifactfs/host/statedir"
)

// FailureOf returns the failure record for a mount, with the state h, that ended without an unmount. why is the cause.
// Credentials are removed from the URL.
func FailureOf(h takeover.State, why error) statedir.Failure {
	return statedir.Failure{
		Dir: h.Dir, ID: h.ID, Remote: statedir.WithoutSecrets(h.Request.Remote), Session: h.Record.Session,
		Ref: h.Record.Ref, Commit: h.Record.Commit, When: time.Now(), Cause: why.Error(),
	}
}
