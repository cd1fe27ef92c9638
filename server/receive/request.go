package receive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/artifactfs/artifactfs/git/pktline"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
)

// Request is a push that the server makes itself, for a client of the REST API or of the page. It is received like a
// push by git with the same token.
type Request struct {
	Repo    records.Repo
	Token   records.Token
	Cause   records.Cause
	Updates []records.RefUpdate // updates of refs, of which all or none are made
	Merged  map[string]string   // sessions by the branches into which they are merged
	// Pack writes a pack with the new objects to w. It is not called if all updates remove refs.
	Pack func(ctx context.Context, w io.Writer) error
}

// Commands returns the commands of the push.
func (r Request) Commands() Commands { return Commands{Updates: r.Updates, Atomic: true} }

// BeginOwn is like Begin for a push that the server makes itself.
func (r *Receiver) BeginOwn(ctx context.Context, at *replica.Replica, q Request) (*Push, error) {
	p, err := r.Begin(ctx, at, q.Token, q.Cause, q.Commands())
	if err == nil {
		p.merged = q.Merged
	}
	return p, err
}

// Write writes the push in the form in which git sends it (gitprotocol-pack(5)).
func (r Request) Write(ctx context.Context, w io.Writer) error {
	var head []byte
	for i, u := range r.Updates {
		line := u.Old + " " + u.New + " " + u.Name
		if i == 0 {
			line += "\x00report-status atomic object-format=" + r.Repo.ObjectFormat
		}
		head = pktline.AppendLine(head, line)
	}
	if _, err := w.Write(pktline.AppendFlush(head)); err != nil {
		return err
	}
	if r.Commands().OnlyRemovals() {
		return nil
	}
	return r.Pack(ctx, w)
}

// Refused means that a push was refused, and that no ref was changed.
type Refused struct {
	Ref    string // ref whose update was refused; "" if git has refused the whole push
	Reason error  // access.Refused, approval.Refused, or another error with a text for people
}

func (r *Refused) Error() string {
	if r.Ref == "" {
		return r.Reason.Error()
	}
	return r.Ref + ": " + r.Reason.Error()
}

// Unwrap returns the reason.
func (r *Refused) Unwrap() error { return r.Reason }

// Outcome returns nil if all updates were made, the error of the server if there was one, and otherwise an error of
// type *Refused with the first reason. report is the report of git.
func (p *Push) Outcome(report io.Reader) error {
	if err := p.Err(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.done) == len(p.commands.Updates) {
		return nil
	}
	for _, u := range p.commands.Updates {
		// Skip ErrAtomic: the other updates of an atomic push fail with it because one update has failed.
		if err := p.failures[u.Name]; err != nil && !errors.Is(err, records.ErrAtomic) {
			return &Refused{u.Name, err}
		}
	}
	return p.refusedByGit(report)
}

// refusedByGit returns the first failure in a report of receive-pack for which git itself is the reason. The caller
// holds mu.
func (p *Push) refusedByGit(report io.Reader) error {
	for packets := pktline.NewReader(report, 4096); ; {
		kind, data, err := packets.Next()
		if err != nil || kind != pktline.Data {
			return fmt.Errorf("read report of git: report contains no failure: %w", noEOF(err))
		}
		line := strings.TrimSuffix(string(data), "\n")
		if text, ok := strings.CutPrefix(line, "unpack "); ok && text != "ok" {
			return &Refused{"", errors.New(text)}
		}
		if rest, ok := strings.CutPrefix(line, "ng "); ok {
			if name, text, _ := strings.Cut(rest, " "); p.failures[name] == nil {
				return &Refused{name, errors.New(text)}
			}
		}
	}
}
