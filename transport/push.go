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
	pushPatience = 4       // factor of Options.Stall: how long a server may work on a push without output
	maxMessages  = 2 << 10 // bytes kept of the messages of the server beside its report
)

// Receiver is what a server offers to a client that pushes.
type Receiver struct {
	Format     object.Format
	Atomic     bool        // whether it can apply all updates or none
	Delete     bool        // whether it can remove refs
	Refs       []Ref       // its refs below the requested prefixes; names and ids only
	Alternates []object.ID // tips of other repositories from which it uses objects
	Agent      string      // the server's program and version, "" if it does not say

	// report and the other fields record which capabilities the server has announced.
	report, sideBand, quiet, namesFormat, namesAgent bool
}

// RefUpdate changes a ref of the server if its value is Old.
type RefUpdate struct {
	Name string
	Old  object.ID // zero: there is no such ref
	New  object.ID // zero: remove the ref
}

// PushRequest describes a push.
type PushRequest struct {
	Updates []RefUpdate
	// Pack writes a complete pack of the objects that the server lacks. Over HTTP it may be called
	// again after a refused login. Nil: the server has all objects.
	Pack   func(ctx context.Context, w io.Writer) error
	Atomic bool // all updates or none; only where Receiver.Atomic says so
}

// Push is an open push: the server has sent its refs and waits for commands.
type Push struct {
	Receiver
	remote *Remote
	line   pushLine
}

// pushLine carries an open push.
type pushLine interface {
	// send sends commands and pack, calls read with the answer, and returns when both have ended.
	// An error of the pack takes precedence over its consequences.
	send(ctx context.Context, head []byte, pack func(context.Context, io.Writer) error, read func(*pktReader) error) error
	close()
}

// OpenPush requests the server's refs below the prefixes (none: all) and its capabilities. The Push
// must be closed.
//
// The refs may be out of date by a moment; the server compares again when it changes them.
func (r *Remote) OpenPush(ctx context.Context, prefixes []string) (*Push, error) {
	return r.openPush(ctx, func(ctx context.Context, c carrier) (pushLine, Receiver, error) { return c.receive(ctx, prefixes) })
}

// OpenPushOf is OpenPush for a caller that has just listed refs and is about to change some of
// them. Over HTTP a push is one request that names the old values, so this only opens a connection.
// On other carriers the server lists its refs first anyway.
func (r *Remote) OpenPushOf(ctx context.Context, refs []Ref) (*Push, error) {
	_, caps, err := r.known()
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(refs))
	for _, ref := range refs {
		names = append(names, ref.Name)
	}
	return r.openPush(ctx, func(ctx context.Context, c carrier) (pushLine, Receiver, error) {
		if caps != nil {
			if line := c.openBlind(); line != nil {
				r.OpenSpare()
				// The server has not sent its capabilities for pushes. All servers support reports.
				return line, Receiver{Format: caps.Format, Refs: refs, report: true, namesFormat: caps.Format != object.SHA1}, nil
			}
		}
		return c.receive(ctx, names)
	})
}

// openPush opens a push by begin, with retries: nothing has been sent yet that changes the server.
func (r *Remote) openPush(ctx context.Context, begin func(context.Context, carrier) (pushLine, Receiver, error)) (*Push, error) {
	var p *Push
	err := r.try(ctx, r.opts.Retries, "push to", func() error {
		c, err := r.carrierFor(ctx)
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

// Close ends the push. If nothing was sent, nothing has changed.
func (p *Push) Close() { p.line.close() }

// Send changes refs by compare-and-swap. It returns the result of each update: nil, or a *Rejected.
// It can be called once. After an error it is not known whether the server has applied the updates;
// nothing is sent twice.
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
		return streamFault(err)
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

// head returns the list of commands: gitprotocol-pack, "Reference Update Request".
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
	// A report names refs, so the results of two commands for one ref could not be distinguished.
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
		// The capabilities follow the first command, behind a zero byte.
		if i == 0 {
			line += "\x00" + traits
		}
		b = pktline.AppendLine(b, line)
	}
	return pktline.AppendFlush(b), nil
}

// needsPack reports whether the server expects a pack: unless all updates remove refs.
func needsPack(updates []RefUpdate) bool {
	for _, u := range updates {
		if !u.New.IsZero() {
			return true
		}
	}
	return false
}

// emptyPack writes a pack without objects. The server expects a pack even if it has all objects already.
func (p *Push) emptyPack(_ context.Context, w io.Writer) error {
	pack := []byte("PACK\x00\x00\x00\x02\x00\x00\x00\x00")
	h := p.Format.New()
	h.Write(pack)
	_, err := w.Write(h.Sum(pack))
	return err
}

// emitter runs the function that writes a pack. The caller must wait for its end.
type emitter struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	err    error // why the pack is incomplete; set once done is closed
}

// errUnread ends a pack that is not read any more.
var errUnread = errors.New("the pack is not read any more")

// emit starts run in a goroutine.
func emit(ctx context.Context, run func(ctx context.Context) error) *emitter {
	e := new(emitter)
	ctx, e.cancel = context.WithCancel(ctx)
	e.done.Go(func() { e.err = run(ctx) })
	return e
}

// stop cancels the function and waits for its end.
func (e *emitter) stop() error {
	e.cancel()
	e.done.Wait()
	return e.err
}
