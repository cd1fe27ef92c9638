package writeback

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control/profile"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/transcript"
)

// erasures erases records from the transcript of the Repo that another host has erased from the transcript of the same
// session. Otherwise this host, whose transcript is older, would push the erased records again: under the diverged name
// of the transcript, or under its usual name if the session remote has only the metadata of the other host yet.
type erasures struct {
	repo *session.Repo
	conn *connection
	log  *zap.Logger

	done []session.Erasure // erasures that this queue has repeated
}

// repeat repeats the erasures that the metadata on the session remote list, if another host has changed these metadata,
// or if the session remote has another history of the transcript than the Repo. changed reports whether it has repeated
// any. After an error, the transcript must not be pushed. The error wraps a *profile.OnHoldError if records were not
// erased because the session is on hold.
func (e *erasures) repeat(ctx context.Context, l *ledger,
	local, theirs map[string]object.ID) (changed bool, err error) {
	name := l.meta.Session
	ref, meta := session.TranscriptRef(name), session.MetaRef(name)
	mine, ours, there := local[ref], local[meta], theirs[meta]
	apart := e.apart(mine, theirs[ref], l.refs[ref])
	if mine.IsZero() || there.IsZero() || !apart && session.Within(e.repo, ours, there) {
		return false, nil
	}
	newest, known, err := e.read(ctx, there, ours)
	if err != nil {
		return false, fmt.Errorf("read what was erased on other hosts: %w", err)
	}
	// The transcript of this host may lack erasures that its metadata have already.
	if apart {
		known.Erased = nil
	}
	repeated := slices.Concat(known.Erased, e.done)
	for _, x := range newest.Erased {
		if slices.ContainsFunc(repeated, x.Same) {
			continue
		}
		req := transcript.Repeated(name, x)
		req.Hold = errors.Join(newest.OnHold(name), known.OnHold(name))
		erased, memory, err := transcript.Erase(ctx, e.repo, req,
			func(ids []object.ID) error { return e.conn.request(ctx, ids, nil) })
		if err != nil {
			return changed, err
		}
		if e.done, changed = append(e.done, x), true; len(erased)+memory > 0 {
			e.log.Info("erased records that another host has erased", zap.String("session", name),
				zap.Int("records", len(erased)), zap.Int("memory", memory))
		}
	}
	return changed, nil
}

// apart reports whether the transcripts of both sides have different histories, and another host has made that of the
// session remote. mine and there are their commits, and known is what the ledger has of there.
func (e *erasures) apart(mine, there object.ID, known remoteRef) bool {
	return there != known.acked && !known.mayHave(there) &&
		!session.Within(e.repo, mine, there) && !session.Within(e.repo, there, mine)
}

// read returns the metadata in the commit there of the session remote, and in the commit ours of this host.
func (e *erasures) read(ctx context.Context, there, ours object.ID) (newest, known session.Meta, err error) {
	if err = e.conn.fetch(ctx, there, ours); err == nil {
		newest, err = session.MetaAt(e.repo, e.repo.Format(), there)
	}
	if err == nil && !ours.IsZero() {
		known, err = session.MetaAt(e.repo, e.repo.Format(), ours)
	}
	return newest, known, err
}

// eraseFirst repeats the erasures of other hosts, and returns the refs of the Repo after that. held reports whether
// this has failed, so that the transcript is left to another round.
func (r *round) eraseFirst(ctx context.Context, l *ledger, local,
	theirs map[string]object.ID) (now map[string]object.ID, held bool, err error) {
	p := r.p
	changed, failure := p.erasures.repeat(ctx, l, local, theirs)
	if changed {
		if local, err = localRefs(l, p.repo); err != nil {
			return nil, true, err
		}
	}
	if failure == nil {
		return local, false, nil
	}
	failure = fmt.Errorf("push transcript, of which another host has erased records: %w", failure)
	// A hold may last for months, so it is no failure of the session remote.
	if hold := (*profile.OnHoldError)(nil); !errors.As(failure, &hold) {
		r.later = failure
	}
	p.report.notice(failure.Error())
	return local, true, nil
}
