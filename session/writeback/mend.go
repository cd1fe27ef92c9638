package writeback

import (
	"context"

	"github.com/artifactfs/artifactfs/session"
)

// Mend repairs refs of a session's Repo whose files are broken, and returns the repaired refs. It takes values from the ledger,
// which records the refs of the session remote. The parameter remote is the URL of the session remote without secrets; it is
// empty if the Repo is the session remote.
func Mend(ctx context.Context, repo *session.Repo, remote string) ([]session.Mended, error) {
	l, err := readLedger(repo, remote)
	if err != nil {
		return nil, err
	}
	return repo.MendRefs(ctx, l.known)
}
