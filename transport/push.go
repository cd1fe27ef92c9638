package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/artifactfs/artifactfs/internal/pktline"
	"github.com/artifactfs/artifactfs/internal/refname"
	"github.com/artifactfs/artifactfs/object"
)

const (
	pushPatience = 4       // times Options.Stall that a server may think about what it was sent
	saidMost     = 2 << 10 // bytes kept of what a server says beside its report
)

// Receiver is what a server says of itself to who wants to push.
type Receiver struct {
	Format object.Format
	Atomic bool        // it can make all updates or none
	Delete bool        // it removes refs
	Refs   []Ref       // that it has and were asked about; names and ids alone
	Have   []object.ID // tips of others that it borrows objects from
	Agent  string      // the server's program and version, "" if it does not say

	report, sideBand, quiet, namesFormat, namesAgent bool
}

// RefUpdate moves a ref of the server if it is what it is taken for.
type RefUpdate struct {
	Name string
	Old  object.ID // zero: there is no such ref
	New  object.ID // zero: it goes
}

// PushRequest asks to move refs.
type PushRequest struct {
	Updates []RefUpdate
	// Pack writes a pack that needs no other: what the server lacks of the new ids. Over HTTP it may be called more than
	// once, where a login is refused. Nil: the server has it all.
	Pack   func(ctx context.Context, w io.Writer) error
	Atomic bool // all updates or none; only where Receiver.Atomic says so
}

// Push is a push under way: the server has said what it has, and waits to be told what to change.
type Push struct {
	Receiver
	remote *Remote
	line   pushLine
}

// pushLine carries one push behind its beginning.
type pushLine interface {
	// send sends commands and pack, has read look at the answer, and returns when both have ended. What went wrong with the
	// pack is the error, before what came of that.
	send(ctx context.Context, head []byte, pack func(context.Context, io.Writer) error, read func(*pktReader) error) error
	close()
}

// OpenPush asks the server what it has below the prefixes (none: all) and takes. The Push has to be closed.
//
// Refs may be of a moment ago; the server compares again when it moves them.
func (r *Remote) OpenPush(ctx context.Context, prefixes []string) (*Push, error) {
	return r.openPush(ctx, func(ctx context.Context, c carrier) (pushLine, Receiver, error) { return c.receive(ctx, prefixes) })
}

// OpenPushOf is OpenPush for who has just been told of refs (Refs), and is about to move some of them. Over HTTP a push is
// one request that says what the refs are taken for, so nothing is asked now but for a connection; elsewhere the server
// begins each push with what they are.
func (r *Remote) OpenPushOf(ctx context.Context, told []Ref) (*Push, error) {
	_, caps, err := r.known()
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(told))
	for _, ref := range told {
		names = append(names, ref.Name)
	}
	return r.openPush(ctx, func(ctx context.Context, c carrier) (pushLine, Receiver, error) {
		if caps != nil {
			if line := c.blind(); line != nil {
				r.OpenSpare()
				// What else a server can do it has not said. All of them report.
				return line, Receiver{Format: caps.Format, Refs: told, report: true, namesFormat: caps.Format != object.SHA1}, nil
			}
		}
		return c.receive(ctx, names)
	})
}

func (r *Remote) openPush(ctx context.Context, begin func(context.Context, carrier) (pushLine, Receiver, error)) (*Push, error) {
	var p *Push
	err := r.try(ctx, r.opts.Retries, "push to", func() error {
		c, err := r.reach(ctx)
		if err != nil {
			return err
		}
		line, about, err := begin(ctx, c)
		if err != nil {
			return err
		}
		if !about.report {
			line.close()
			return errNoReport
		}
		p = &Push{Receiver: about, remote: r, line: line}
		return nil
	})
	return p, err
}

// Close ends the push. Where nothing was sent nothing has changed.
func (p *Push) Close() { p.line.close() }

// Send moves refs by compare-and-swap, and tells of each update what became of it: nil, or a *Rejected. It can be called
// once. An error means that it is open whether the server has done it; nothing is sent twice.
func (p *Push) Send(ctx context.Context, req PushRequest) ([]error, error) {
	head, err := p.head(req)
	if err != nil {
		return nil, err
	}
	pack := req.Pack
	if pack == nil && needsPack(req.Updates) {
		pack = p.emptyPack
	}
	var results []error
	err = p.line.send(ctx, head, pack, func(answer *pktReader) (err error) {
		results, err = p.report(answer, req.Updates)
		return lost(err)
	})
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		} else {
			p.remote.stats.fail(err)
		}
		return nil, fmt.Errorf("push to %s: %w", p.remote.URL(), err)
	}
	return results, nil
}

// head is the list of commands: gitprotocol-pack, "Reference Update Request".
func (p *Push) head(req PushRequest) ([]byte, error) {
	if len(req.Updates) == 0 {
		return nil, errors.New("push: nothing to change")
	}
	traits := " report-status"
	if p.sideBand {
		traits += " side-band-64k"
	}
	if p.quiet {
		traits += " quiet"
	}
	if req.Atomic && p.Atomic {
		traits += " atomic"
	}
	if p.namesFormat {
		traits += " object-format=" + p.Format.String()
	}
	if p.namesAgent {
		traits += " agent=" + agent
	}
	none := strings.Repeat("0", 2*p.Format.Size())
	hex := func(id object.ID) (string, error) {
		if id.IsZero() {
			return none, nil
		}
		if id.Format() != p.Format {
			return "", fmt.Errorf("push: object %s to a %v repository", id, p.Format)
		}
		return id.String(), nil
	}
	var b []byte
	seen := make(map[string]bool, len(req.Updates))
	for i, u := range req.Updates {
		if !refname.Valid(u.Name) || u.Name == "HEAD" || seen[u.Name] {
			return nil, fmt.Errorf("push: %.200q cannot be moved, or not twice", u.Name)
		}
		seen[u.Name] = true
		if u.New.IsZero() && (u.Old.IsZero() || !p.Delete) {
			return nil, fmt.Errorf("push: server cannot remove %s", u.Name)
		}
		from, err := hex(u.Old)
		if err != nil {
			return nil, err
		}
		to, err := hex(u.New)
		if err != nil {
			return nil, err
		}
		line := from + " " + to + " " + u.Name
		if i == 0 {
			line += "\x00" + traits
		}
		b = pktline.AppendLine(b, line)
	}
	return pktline.AppendFlush(b), nil
}

// needsPack: a server waits for a pack unless all there is to do is to remove.
func needsPack(updates []RefUpdate) bool {
	for _, u := range updates {
		if !u.New.IsZero() {
			return true
		}
	}
	return false
}

func (p *Push) emptyPack(_ context.Context, w io.Writer) error {
	pack := []byte("PACK\x00\x00\x00\x02\x00\x00\x00\x00")
	h := p.Format.New()
	h.Write(pack)
	_, err := w.Write(h.Sum(pack))
	return err
}

// emitter runs what writes a pack. Its end has to be waited for.
type emitter struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	err    error // why the pack is not whole; valid after done
}

// errEnough ends a pack that nobody reads any more.
var errEnough = errors.New("nobody reads it any more")

func emit(ctx context.Context, run func(ctx context.Context) error) *emitter {
	e := new(emitter)
	ctx, e.cancel = context.WithCancel(ctx)
	e.done.Go(func() { e.err = run(ctx) })
	return e
}

// stop waits for the end, and makes it come.
func (e *emitter) stop() error {
	e.cancel()
	e.done.Wait()
	return e.err
}
