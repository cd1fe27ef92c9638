package writeback

import (
	"context"
	"slices"

	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
)

// Mode is the way in which a session remote gets the objects of the mounted remote to which the session refers.
type Mode string

const (
	// ModeUnknown means that the mode of the session remote is not decided yet.
	ModeUnknown Mode = ""
	// ModeEmbedded means that the session remote is the Repo, which reads the objects of the mounted remote from the
	// store on this host.
	ModeEmbedded Mode = "embedded"
	// ModeShared means that the session remote has the objects of the mounted remote already, because it is the mounted
	// remote or a fork of it.
	ModeShared Mode = "shared"
	// ModeSeed means that the base commits of the session and their whole history are pushed to the session remote
	// before the session.
	ModeSeed Mode = "seed"
	// ModeThin means that the session remote does not get the history of the mounted remote, but only its URL and the
	// ids of the base commits; see package thin.
	ModeThin Mode = "thin"
)

// modeChoice chooses the Mode of a session remote.
type modeChoice struct {
	base    Mode   // QueueOptions.Base
	baseURL string // QueueOptions.BaseURL
	remote  *thin.Remote
}

// choose decides in the first round whether the session remote uses ModeThin, and records this in l. It uses ModeThin
// if the options require it, or if the session remote is empty and other machines can read the mounted remote at
// BaseURL. If the session remote is itself the mounted remote, which was empty then, there is no history that it could
// lack, and it gets ordinary refs that all clients can read. Otherwise seeder.missingBases chooses between ModeShared
// and ModeSeed during the first push.
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
		empty := push.Empty // if the push has shown this already, no request is needed
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
