package catalog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/session/resume"
	"github.com/artifactfs/artifactfs/internal/clock"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/lifecycle"
)

const (
	// metaTries is the number of attempts to change the metadata on a session remote while other machines change it at the same time.
	metaTries = 20
	// metaPause is the time before the second attempt. It grows by the same time before each further attempt.
	metaPause = 20 * time.Millisecond
)

// changeThere changes a session on its session remote, by compare-and-swap of its metadata, and returns the new metadata. Temporary files
// are created in dir. If another machine changes the metadata at the same time, changeThere starts again. It returns
// fault.NoSuchSessionError if the session remote does not have the session.
func changeThere(ctx context.Context, remote *transport.Remote, dir, name string, c lifecycle.Change) (session.Meta, error) {
	for try := range metaTries {
		if try > 0 && !clock.Wait(ctx, time.Duration(try)*metaPause) {
			return session.Meta{}, ctx.Err()
		}
		m, err := attemptThere(ctx, remote, dir, name, c)
		var refused *transport.Rejected
		if !errors.As(err, &refused) || refused.Kind != transport.RejectMoved {
			return m, err
		}
	}
	return session.Meta{}, fmt.Errorf("write session %s: %w", name, session.ErrRefMoved)
}

// attemptThere makes one attempt for changeThere.
func attemptThere(ctx context.Context, remote *transport.Remote, dir, name string, c lifecycle.Change) (m session.Meta, err error) {
	ref := session.MetaRef(name)
	push, err := remote.OpenPush(ctx, []string{ref})
	if err != nil {
		return m, fault.SessionRemote(remote, err)
	}
	defer push.Close()
	var old object.ID
	for _, r := range push.Refs {
		if r.Name == ref {
			old = r.ID
		}
	}
	if old.IsZero() {
		return m, fault.NoSuchSessionError{Remote: remote.URL()}
	}
	if m, err = resume.ReadMeta(ctx, dir, remote, old); err != nil {
		return m, fault.SessionRemote(remote, err)
	}
	before, now := m.Clone(), time.Now().UTC()
	if err := c.Apply(&m, now); err != nil || m.Equal(before) {
		return m, err
	}
	next, objects, err := m.Encode(push.Format, old, now)
	if err != nil {
		return m, err
	}
	results, err := push.Send(ctx, transport.PushRequest{
		Updates: []transport.RefUpdate{{Name: ref, Old: old, New: next}},
		Pack:    func(ctx context.Context, w io.Writer) error { return odb.WritePack(ctx, w, push.Format, objects) },
	})
	if err == nil {
		err = results[0]
	}
	if err != nil {
		err = fault.SessionRemote(remote, err)
	}
	return m, err
}
