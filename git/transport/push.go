package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/pktline"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/git/transport/endpoint"
)

const (
	pushPatience = 4       // a server may work on a push without output for this many times Options.Stall
	maxMessages  = 2 << 10 // maximum number of bytes that are kept of the server's messages, in addition to its report
)

// Receiver holds the data that a server announces to a client that pushes: its refs and its capabilities.
type Receiver struct {
	Format object.Format
	Atomic bool  // whether the server can apply either all updates or none
	Delete bool  // whether the server can delete refs
	Refs   []Ref // the server's refs below the requested prefixes; callers use only the fields Name and ID
	// whether the server has stated that it has no refs; if false, the server may still have none
	Empty      bool
	Alternates []object.ID // tips of other repositories whose objects the server uses (".have")
	Agent      string      // the server's program and version; "" if the server does not state them

	// The fields below record whether the server has announced report-status, side-band-64k, quiet, object-format and
	// agent.
	report, sideBand, quiet, namesFormat, namesAgent bool
}

// RefUpdate changes the ref Name from Old to New. The server refuses the update if the ref does not have the value Old.
type RefUpdate struct {
	Name string
	Old  object.ID // expected value of the ref; zero if the ref must not exist
	New  object.ID // new value of the ref; zero deletes the ref
}

// PushRequest describes the updates of a push and the objects that they need.
type PushRequest struct {
	Updates []RefUpdate
	// Pack writes a complete pack of the objects that the server lacks. Over HTTP Pack may be called again after a refused
	// login. Pack is nil if the server has all objects.
	Pack   func(ctx context.Context, w io.Writer) error
	Atomic bool // whether to apply all updates or none; has an effect only if Receiver.Atomic is true
}

// Push is a push that was opened and can be sent once. The caller must close it.
type Push struct {
	Receiver
	remote *Remote
	line   pushLine // the connection, or for HTTP the server, to which the push is sent
}

// pushLine is an open push over one kind of connection, such as HTTP or SSH.
type pushLine interface {
	// send sends the commands in head and then the pack, which the function pack writes, and calls the function read with
	// the server's answer. It returns when both functions have returned. If the function pack fails, send returns the
	// error of that function instead of the errors that result from this failure.
	send(ctx context.Context, head []byte, pack func(context.Context, io.Writer) error, read func(*pktReader) error) error
	// close ends the push. It does nothing after send.
	close()
}

// OpenPush opens a push. It requests the server's capabilities and its refs below the prefixes, or all refs if prefixes
// is empty. The caller must close the Push.
//
// The refs may already be out of date; the server compares the old values again when it changes the refs.
func (r *Remote) OpenPush(ctx context.Context, prefixes []string) (*Push, error) {
	return r.openPush(ctx,
		func(ctx context.Context, c carrier) (pushLine, Receiver, error) { return c.receive(ctx, prefixes) })
}

// OpenPushOf opens a push for a caller that has just listed refs and will change some of these refs. An HTTP push is
// one request that contains the old values of the refs, so over HTTP OpenPushOf only opens a connection and does not
// list the refs again. On other carriers, the server sends its refs at the start of each push, whether or not the
// caller needs them.
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
				// Assume report-status, which all servers support, because the server has not sent its capabilities for pushes.
				return line, Receiver{Format: caps.Format, Refs: refs, report: true, namesFormat: caps.Format != object.SHA1}, nil
			}
		}
		return c.receive(ctx, names)
	})
}

// openPush opens a push by calling the function begin. It retries after transport faults, because begin sends no
// command that changes the server.
func (r *Remote) openPush(ctx context.Context,
	begin func(context.Context, carrier) (pushLine, Receiver, error)) (*Push, error) {
	if r.opts.BeforePush != nil && r.endpoint.Scheme == endpoint.Local {
		if err := r.opts.BeforePush(r.endpoint.Path); err != nil {
			return nil, fmt.Errorf("push to %s: %w", r.URL(), err)
		}
	}
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

// Close ends the push. Nothing has changed on the server if Send was not called.
func (p *Push) Close() { p.line.close() }

// Send sends the updates and returns the result of each: nil, or a *Rejected. The server changes a ref only if the ref
// has the value Old. Send can be called once. If Send itself returns an error, the server may or may not have applied
// the updates; Send does not repeat them.
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

// head returns the list of commands in the format of gitprotocol-pack, "Reference Update Request".
func (p *Push) head(req PushRequest) ([]byte, error) {
	if len(req.Updates) == 0 {
		return nil, errors.New("push: request has no ref updates")
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
			return "", fmt.Errorf("push: object %s is not in the repository's hash format %v", id, p.Format)
		}
		return id.String(), nil
	}
	// Refuse two commands for the same ref: the server's report names only refs, so the results of these commands could
	// not be distinguished.
	var b []byte
	seen := make(map[string]bool, len(req.Updates))
	for i, u := range req.Updates {
		if !refname.Valid(u.Name) || u.Name == "HEAD" || seen[u.Name] {
			return nil, fmt.Errorf("push: ref %.200q is invalid or is updated twice", u.Name)
		}
		seen[u.Name] = true
		if u.New.IsZero() && (u.Old.IsZero() || !p.Delete) {
			return nil, fmt.Errorf("push: server does not support the deletion of ref %s", u.Name)
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
		// The capabilities follow the first command, after a zero byte.
		if i == 0 {
			line += "\x00" + traits
		}
		b = pktline.AppendLine(b, line)
	}
	return pktline.AppendFlush(b), nil
}

// needsPack reports whether the server expects a pack. It returns false only if all updates delete refs.
func needsPack(updates []RefUpdate) bool {
	for _, u := range updates {
		if !u.New.IsZero() {
			return true
		}
	}
	return false
}

// emptyPack writes a pack without objects. The server expects a pack even if it already has all objects.
func (p *Push) emptyPack(_ context.Context, w io.Writer) error {
	pack := []byte("PACK\x00\x00\x00\x02\x00\x00\x00\x00")
	h := p.Format.New()
	h.Write(pack)
	_, err := w.Write(h.Sum(pack))
	return err
}

// emitter runs, in a goroutine, the function that writes a pack. The owner of the emitter must call stop.
type emitter struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	err    error // reason why the pack is incomplete; may be read after done.Wait
}

// errUnread is the error of a write to a pack whose reader was closed.
var errUnread = errors.New("reader of the pack was closed")

// emit starts the function run in a goroutine. The context that run receives ends when stop is called.
func emit(ctx context.Context, run func(ctx context.Context) error) *emitter {
	e := new(emitter)
	ctx, e.cancel = context.WithCancel(ctx)
	e.done.Go(func() { e.err = run(ctx) })
	return e
}

// stop cancels the context of the function, waits until it has returned, and returns its error.
func (e *emitter) stop() error {
	e.cancel()
	e.done.Wait()
	return e.err
}
