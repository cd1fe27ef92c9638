package writeback

import (
	"context"

	"github.com/artifactfs/artifactfs/session"
)

// Mend gives refs of a session's Repo that are broken a value again, with the help of what is known of the session remote,
// whose URL without secrets is remote; "": the Repo is that.
func Mend(ctx context.Context, repo *session.Repo, remote string) ([]session.Mended, error) {
	l, err := readLedger(repo, remote)
	if err != nil {
		return nil, err
	}
	m, err := metaOf(repo)
	if err != nil {
		return nil, err
	}
	return repo.MendRefs(ctx, l.known(l.layout(m)))
}
