package transport

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/pktline"
	"github.com/artifactfs/artifactfs/git/refname"
)

var (
	// ErrNoPush means that the server does not accept pushes.
	ErrNoPush = errors.New("server does not accept pushes")
	// errNoReport means that the server does not support report-status, so the result of a push would be unknown.
	errNoReport = fmt.Errorf("%w: server does not report the result of a push", ErrNoPush)
)

// RejectKind classifies the reasons for which a server refuses an update.
type RejectKind uint8

const (
	RejectOther       RejectKind = iota // any text that is not listed below
	RejectMoved                         // the ref did not have the old value, or the ref was locked
	RejectFastForward                   // the server allows only fast-forward updates
	RejectDeletion                      // the server does not allow refs to be deleted
	RejectHook                          // a hook of the server refused the update
	RejectMissing                       // the server lacks objects that the new commit refers to
	RejectUnpack                        // the server could not store the pack
	RejectAtomic                        // another update of the same atomic push was refused
	RejectShallow                       // the server does not accept commits with a shallow history
)

// Rejected is the error for an update that the server has refused.
type Rejected struct {
	Ref  string
	Kind RejectKind
	Text string // the server's text, as one line
}

// Error returns a message with the ref and the server's text.
func (e *Rejected) Error() string { return "server rejected " + e.Ref + ": " + e.Text }

// rejectKind classifies the texts that git's receive-pack sends. The protocol has no error codes. An unknown text is
// RejectOther, after which the caller can list the refs to see which updates were made.
func rejectKind(text string) RejectKind {
	// "hook declined", "pre-receive hook declined", "protected branch hook declined"
	if strings.HasSuffix(text, "hook declined") {
		return RejectHook
	}
	// The texts are those of git's builtin/receive-pack.c and refs code. "stale ref" is that of artifactfs serve.
	switch text {
	case "non-fast-forward":
		return RejectFastForward
	case "deletion prohibited", "deletion of the current branch prohibited":
		return RejectDeletion
	case "missing necessary objects":
		return RejectMissing
	case "unpacker error":
		return RejectUnpack
	case "atomic push failure", "atomic transaction failed", "transaction failed to start":
		return RejectAtomic
	case "shallow update not allowed":
		return RejectShallow
	case "failed to update ref", "failed to lock", "failed to delete", "reference already exists",
		"reference does not exist",
		"incorrect old value provided", "stale ref", "reference conflict due to case-insensitive filesystem":
		return RejectMoved
	}
	return RejectOther
}

// parseReceiver parses the first message that a server sends to a client that pushes: protocol version 0 or 1,
// gitprotocol-pack, "Reference Discovery". Over HTTP a "# service" header and a flush packet may precede it. Refs that
// are not below prefixes are dropped.
func parseReceiver(p *pktReader, prefixes []string) (Receiver, error) {
	var about Receiver
	kind, line, err := p.line()
	if err == nil && kind == pktline.Data && string(line) == "# service="+string(receivePack) {
		if kind, _, err = p.line(); err == nil && kind != pktline.Flush {
			return about, fmt.Errorf("%w: unexpected %v after the service header", errProtocol, kind)
		}
		kind, line, err = p.line()
	}
	if err == nil && kind == pktline.Data && string(line) == "version 1" {
		kind, line, err = p.line()
	}
	// Each round of the loop reads one ref; the capabilities follow the first ref.
	for n := 0; ; n++ {
		if err != nil {
			return about, cutAfter(n, err)
		}
		if kind == pktline.Flush && n > 0 {
			return about, nil
		}
		if kind != pktline.Data || n >= maxRefs {
			return about, fmt.Errorf("%w: unexpected %v in place of ref %d", errProtocol, kind, n)
		}
		text := string(line)
		if n == 0 {
			var traits string
			text, traits, _ = strings.Cut(text, "\x00")
			if err := about.parseCapabilities(traits); err != nil {
				return about, err
			}
		}
		if err := about.addRef(text, prefixes); err != nil {
			return about, err
		}
		kind, line, err = p.line()
	}
}

// cutAfter returns the error for a stream that ended with err before its packet number n. If n is greater than zero,
// the end is unexpected, because packets preceded it.
func cutAfter(n int, err error) error {
	if n > 0 {
		return cut(err)
	}
	return err
}

// parseCapabilities parses the capabilities that follow the first ref.
func (about *Receiver) parseCapabilities(traits string) error {
	for trait := range strings.FieldsSeq(traits) {
		key, value, _ := strings.Cut(trait, "=")
		if !isCapability(key, value) {
			return fmt.Errorf("%w: invalid capability %.80q", errProtocol, trait)
		}
		switch key {
		case "report-status":
			about.report = true
		case "side-band-64k":
			about.sideBand = true
		case "quiet":
			about.quiet = true
		case "atomic":
			about.Atomic = true
		case "delete-refs":
			about.Delete = true
		case "agent":
			about.Agent, about.namesAgent = value, true
		case "object-format":
			f, err := object.ParseFormat(value)
			if err != nil {
				return fmt.Errorf("%w: %w", errProtocol, err)
			}
			about.Format, about.namesFormat = f, true
		}
	}
	return nil
}

// addRef parses a line "<id> <name>". A server without refs sends a placeholder for the name, so that it can send its
// capabilities. Names that cannot be pushed to are ignored.
func (about *Receiver) addRef(line string, prefixes []string) error {
	hex, name, ok := strings.Cut(line, " ")
	if hex == "shallow" { // the line names a boundary of the server's own shallow history
		return nil
	}
	if ok && name == "capabilities^{}" && strings.Trim(hex, "0") == "" {
		about.Empty = true
		return nil
	}
	id, err := parseID(about.Format, hex)
	if err != nil {
		return err
	}
	// A server lists the tips of its alternates as ".have". A pack need not contain objects that are reachable from these
	// tips.
	switch {
	case name == ".have":
		about.Alternates = append(about.Alternates, id)
	case name == "HEAD" || !refname.Valid(name): // these names cannot be pushed to
	case wanted(name, prefixes):
		about.Refs = append(about.Refs, Ref{Name: name, ID: id})
	}
	return nil
}

// banded reads the report from band 1 of the answer, and stores the last part of the server's messages, which arrive on
// band 2.
type banded struct {
	p *pktReader
	// rest is the unread part of the current packet.
	rest []byte
	said []byte // the last maxMessages bytes of the text on band 2
	over bool   // whether the flush packet at the end was read
}

// Read returns bytes of band 1. It returns io.EOF after the flush packet.
func (b *banded) Read(to []byte) (int, error) {
	for len(b.rest) == 0 {
		if err := b.step(); err != nil {
			return 0, err
		}
	}
	n := copy(to, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// step reads the next packet, on any band. It returns io.EOF at the flush packet.
func (b *banded) step() error {
	if b.over {
		return io.EOF
	}
	kind, packet, err := b.p.packet()
	switch {
	case err != nil:
		return cut(err)
	case kind == pktline.Flush:
		b.over = true
		return io.EOF
	case kind != pktline.Data || len(packet) == 0:
		return fmt.Errorf("%w: unexpected %v in the push report", errProtocol, kind)
	}
	switch packet[0] {
	case bandData:
		b.rest = packet[1:]
	case bandProgress:
		// Keep only the last part of the messages, because hooks may print any amount of text.
		b.said = append(b.said, packet[1:]...)
		b.said = b.said[max(0, len(b.said)-maxMessages):]
	case bandError:
		return parseRemoteError(packet[1:])
	default:
		return fmt.Errorf("%w: unknown side band %d", errProtocol, packet[0])
	}
	return nil
}

// drain reads the rest of the answer. The server ends the answer after its hooks have finished.
func (b *banded) drain() error {
	for {
		b.rest = nil
		if err := b.step(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// report reads the result of each update, in the format of gitprotocol-pack, "Report Status".
func (p *Push) report(answer *pktReader, updates []RefUpdate) ([]error, error) {
	if !p.sideBand {
		return parseReport(answer, updates, func() string { return "" })
	}
	b := &banded{p: answer}
	results, err := parseReport(newPktReader(b), updates, func() string { return plain(b.said) })
	if err == nil {
		err = b.drain()
	}
	return results, err
}

// parseReport parses the report about updates and returns the result of each update. The function said returns the
// messages that the server has sent on band 2; parseReport calls said after it has read the report.
func parseReport(p *pktReader, updates []RefUpdate, said func() string) ([]error, error) {
	kind, line, err := p.line()
	if err != nil {
		return nil, cut(err)
	}
	unpacked, ok := strings.CutPrefix(string(line), "unpack ")
	if kind != pktline.Data || !ok {
		return nil, fmt.Errorf("%w: push report starts with %.80q, want \"unpack\"", errProtocol, line)
	}
	// The server may report the refs in any order.
	index := make(map[string]int, len(updates))
	for i, u := range updates {
		index[u.Name] = i
	}
	results, reported := make([]error, len(updates)), make([]bool, len(updates))
	for {
		kind, line, err := p.line()
		if err != nil {
			return nil, cut(err)
		}
		if kind == pktline.Flush {
			break
		}
		word, rest, _ := strings.Cut(string(line), " ")
		name, reason, _ := strings.Cut(rest, " ")
		i, known := index[name]
		if kind != pktline.Data || !known && word != "option" {
			return nil, fmt.Errorf("%w: unexpected line %.80q in the push report", errProtocol, line)
		}
		switch word {
		case "ok":
			reported[i] = true
		case "ng":
			reported[i] = true
			results[i] = &Rejected{Ref: name, Kind: rejectKind(reason), Text: plain([]byte(reason))}
		case "option": // this line belongs to report-status-v2, which was not requested
		default:
			return nil, fmt.Errorf("%w: unexpected line %.80q in the push report", errProtocol, line)
		}
	}
	// If the server could not unpack the pack, it reports this once for all updates. This failure replaces the results of
	// the updates that needed the pack.
	for i, u := range updates {
		rejected, _ := results[i].(*Rejected)
		switch {
		case unpacked != "ok" && !u.New.IsZero():
			if rejected == nil || rejected.Kind == RejectOther {
				rejected = &Rejected{Ref: u.Name}
			}
			rejected.Kind, rejected.Text = RejectUnpack, plain([]byte(unpacked))
			results[i] = rejected
		// An update without a result in the report is an error, because it could otherwise be mistaken for a success.
		case !reported[i]:
			return nil, fmt.Errorf("%w: push report lacks the result of ref %s", errProtocol, u.Name)
		}
		// The report only states that a hook, the unpacker or a lock has failed. The reason is in the output on band 2, so
		// append that output.
		if rejected != nil && (rejected.Kind == RejectHook || rejected.Kind == RejectUnpack ||
			rejected.Kind == RejectMoved) && said() != "" {
			rejected.Text += ": " + said()
		}
	}
	return results, nil
}
