package writeback

import (
	"context"
	"slices"

	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
)

// Mode is the way in which a session remote obtains the objects that were not created in the session: those of the
// mounted remote.
type Mode string

const (
	// ModeUnknown means that the mode is not decided yet.
	ModeUnknown Mode = ""
	// ModeEmbedded means that the session remote is the Repo, which borrows the objects from the store.
	ModeEmbedded Mode = "embedded"
	// ModeShared means that the session remote has the objects already, because it is the mounted remote or a fork of it.
	ModeShared Mode = "shared"
	// ModeSeed means that the session pushes the objects to the session remote.
	ModeSeed Mode = "seed"
	// ModeThin means that the session remote refers to the objects by URL and commit: see package thin.
	ModeThin Mode = "thin"
)

// modeChoice chooses the mode of a session remote.
type modeChoice struct {
	base    Mode   // QueueOptions.Base
	baseURL string // QueueOptions.BaseURL
	remote  *thin.Remote
}

// choose decides in the first round whether the session remote uses ModeThin, and records the decision in l. It chooses ModeThin if
// the session remote is empty and other machines can read the mounted remote at BaseURL, or if the options require ModeThin. If both
// are the same repository, which is a new one then, there is no base that it could lack, and it gets ordinary refs that all clients read.
// Otherwise the method seeder.lacks chooses between ModeShared and ModeSeed during the first push.
func (m modeChoice) choose(ctx context.Context, push *thin.Push, l *ledger) error {
	if push.Thin() {
		l.mode = ModeThin
		return nil
	}
	if l.mode != ModeUnknown || m.base != ModeThin && (m.base != ModeUnknown || m.baseURL == "") {
		return nil
	}
	if m.base == ModeUnknown {
		if m.remote.URL() == m.baseURL {
			return nil
		}
		empty := push.Empty // then no request is needed
		if !empty {
			var err error
			if empty, err = m.remote.IsEmpty(ctx); err != nil || !empty {
				return err
			}
		}
	} else if slices.ContainsFunc(push.Refs, func(ref transport.Ref) bool {
		return !push.Direct(ref.Name) && isSent(ref.Name, l.layout()) && !session.IsUsers(ref.Name)
	}) {
		return nil // the session is already on the session remote, in another mode
	}
	l.mode = ModeThin
	return push.UseContainer()
}
