package githttp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/places"
	"github.com/artifactfs/artifactfs/server/receive"
	"github.com/artifactfs/artifactfs/server/records"
)

// reserve is the free space on disk, in bytes, below which pushes are refused.
const reserve = 32 << 20

// room returns objects.ErrFull if the disk of the directory dir has less free space than reserve plus need, in bytes.
func room(dir string, need int64) error {
	if free, err := disk.Free(dir); err == nil && free < reserve+max(need, 0) {
		return fmt.Errorf("%w: only %d bytes are free", objects.ErrFull, free)
	}
	return nil
}

// push answers the second request of a push.
func (e *exchange) push(ctx context.Context) error {
	in, err := e.newInput(e.s.limits.Push)
	if err != nil {
		return err
	}
	defer in.settle(e.w.Header())
	defer context.AfterFunc(ctx, in.unblock)()
	from := &placed{in: in, enter: func() (*places.Place, error) { return e.place(ctx, places.Large) }}
	defer from.free()
	commands, body, err := receive.ReadCommands(from)
	if err == nil {
		err = from.take()
	}
	if err != nil {
		return because(ctx, err)
	}
	in.due, in.pace = time.Time{}, e.s.limits.newPace()
	ctx = from.place.Limit(ctx)
	out := &output{e: e, kind: "application/x-" + e.service + "-result", limit: e.s.limits.Answer, hold: true}
	if len(commands.Updates) == 0 {
		// Before a large push, git sends a request without commands to find out whether its credentials are accepted.
		return out.end(nil)
	}
	at, err := e.s.o.Replicas.AcquireRepo(ctx, e.repo)
	if err != nil {
		return err
	}
	defer at.Release()
	if !commands.OnlyRemovals() { // no space is needed if the push only removes refs
		if err := room(at.Dir, e.r.ContentLength); err != nil {
			return err
		}
	}
	push, err := e.s.receiver.Begin(ctx, at, e.token, e.cause(), commands)
	if err != nil {
		return err
	}
	defer push.End()
	err = in.why(e.receive(ctx, push, in, body, out))
	if failure := push.Err(); failure != nil && (!out.begun || err == nil) {
		err = failure
	} else if full := room(at.Dir, 0); full != nil && err == nil && !push.Decided() {
		err = full // report the full disk instead: git reports only that it could not unpack the objects
	}
	if report := commands.Failure(errWork.Error()); report != nil && errors.Is(err, errWork) && !push.Decided() {
		e.failed(err)
		return out.replace(report)
	}
	switch {
	case err != nil && out.begun, err != nil && len(push.Done()) > 0:
		e.failed(err)
	case len(push.Done()) == 0 && err == nil:
		e.audit(http.StatusOK, "refused: "+cmp.Or(push.Refused(), describe(commands.Updates)))
	}
	if len(push.Done()) > 0 && !out.begun {
		err = nil // the report of git is the answer, because some refs have been changed
	}
	return out.end(err)
}

// placed is the body of a push. Its beginning is read without a place for git, so that a slow client occupies none.
// Longer commands need memory, so they are read when the push has its place.
type placed struct {
	in    *input
	enter func() (*places.Place, error)
	place *places.Place // place for git; nil if the push has none
}

func (p *placed) Read(b []byte) (int, error) {
	if p.place == nil && p.in.total >= maxHead {
		if err := p.take(); err != nil {
			return 0, err
		}
	}
	return p.in.Read(b)
}

// take waits for a place for git, unless the push has one. The time of the wait is not counted as time of the client.
func (p *placed) take() (err error) {
	if p.place == nil {
		begin := time.Now()
		p.place, err = p.enter()
		p.in.due = p.in.due.Add(time.Since(begin))
	}
	return err
}

// free gives the place back.
func (p *placed) free() {
	if p.place != nil {
		p.place.Release()
	}
}

// holdTime is the time for which the answer to a push is held back after the whole body was read, so that a failure can
// still be reported by the HTTP status.
const holdTime = 3 * time.Second

// receive runs receive-pack, and sends its report when the results of the updates are known.
func (e *exchange) receive(ctx context.Context, push *receive.Push, in *input, body io.Reader, out *output) error {
	ctx, cancel := context.WithCancel(ctx)
	var holding sync.WaitGroup
	defer holding.Wait()
	defer cancel()
	holding.Go(func() {
		select {
		case <-in.ended:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(holdTime):
			_ = out.release() // an error is ignored, because the next write returns it, too
		case <-ctx.Done():
		}
	})
	served := make(chan error, 1)
	go func() { served <- push.Serve(ctx) }()
	err := e.run(ctx, func(ctx context.Context) (c command, err error) {
		c = command{
			body: body, out: out, unblock: in.unblock, started: push.Started,
			time: e.s.limits.Time, memory: gitcmd.MemoryOf(ctx, e.s.git.Memory),
			work: func(received int64) time.Duration {
				if push.Decided() { // the refs may be changing
					return math.MaxInt64
				}
				return e.s.limits.work(received)
			},
		}
		if c.cmd, err = e.git(ctx, e.s.threads(), push.Dir()); err == nil {
			push.Configure(c.cmd)
		}
		return c, err
	})
	if err != nil {
		cancel()
	}
	push.Started()
	if serveErr := <-served; err == nil {
		err = serveErr
	}
	return err
}

// describe returns the names of the refs in updates, for the audit log.
func describe(updates []records.RefUpdate) string {
	const most = 1000
	var b strings.Builder
	for _, u := range updates {
		if b.Len()+len(u.Name) > most {
			b.WriteString(" ...")
			break
		}
		b.WriteString(u.Name + " ")
	}
	return strings.TrimSpace(b.String())
}
