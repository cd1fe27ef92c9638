package githttp

import (
	"bytes"
	"context"
	"io"
	"sync"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/server/places"
	"github.com/artifactfs/artifactfs/server/receive"
)

// maxReport is the maximum size, in bytes, of git's report about a push that the server makes itself.
const maxReport = 1 << 20

// Push receives a push that the server makes itself, for a client of the REST API or of the page. It has the limits of
// a push by git, needs a place among the git commands, and is read by git receive-pack. The caller has checked that the
// token allows pushes to the repository, and that the repository is neither read-only nor unfinished. Push returns an
// error of type *receive.Refused if the push was refused, and places.ErrBusy if it got no place in time. After an
// error, no ref was changed.
func (s *Server) Push(ctx context.Context, r receive.Request) error {
	ctx, cancel := s.o.Guard.Watch(ctx, r.Token)
	defer cancel()
	place, err := s.slots.Enter(ctx, places.Large, places.Of(r.Repo.Namespace, r.Repo.ID, r.Token.ID)...)
	if err != nil {
		return err
	}
	defer place.Release()
	ctx = place.Limit(ctx)
	at, err := s.o.Replicas.AcquireRepo(ctx, r.Repo)
	if err != nil {
		return err
	}
	defer at.Release()
	if !r.Commands().OnlyRemovals() {
		if err := room(at.Dir, 0); err != nil {
			return err
		}
	}
	push, err := s.receiver.BeginOwn(ctx, at, r)
	if err != nil {
		return err
	}
	defer push.End()
	report, err := s.receiveOwn(ctx, push, r)
	if failure := push.Err(); failure != nil {
		return failure
	}
	if err != nil && !exited(err) { // failures of git itself are in its report
		return err
	}
	if full := room(at.Dir, 0); full != nil && !push.Decided() {
		return full
	}
	return push.Outcome(report)
}

// receiveOwn runs receive-pack for a push that the server makes itself, and returns git's report.
func (s *Server) receiveOwn(ctx context.Context, push *receive.Push, r receive.Request) (*bytes.Buffer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	body, in := io.Pipe()
	var writing sync.WaitGroup
	defer writing.Wait()
	defer body.Close()
	writing.Go(func() { in.CloseWithError(r.Write(ctx, &limited{in, s.limits.Push})) })
	served := make(chan error, 1)
	go func() { served <- push.Serve(ctx) }()
	report := &bytes.Buffer{}
	ended := s.o.Meter.Git("receive-pack")
	err := run(ctx, func(ctx context.Context) (command, error) {
		c := command{body: body, out: &limited{report, maxReport}, unblock: func() { body.Close() }, started: push.Started,
			time: s.limits.Time, memory: gitcmd.MemoryOf(ctx, s.git.Memory)}
		c.cmd = s.unlimited(ctx, append(s.threads(), "receive-pack", "--stateless-rpc", push.Dir())...)
		push.Configure(c.cmd)
		return c, nil
	})
	ended(err)
	if err != nil {
		cancel()
	}
	push.Started()
	if serveErr := <-served; err == nil {
		err = serveErr
	}
	return report, err
}

// limited is a writer that fails after a given number of bytes.
type limited struct {
	w    io.Writer
	left int64
}

func (l *limited) Write(p []byte) (int, error) {
	if l.left -= int64(len(p)); l.left < 0 {
		return 0, errTooLarge
	}
	return l.w.Write(p)
}
