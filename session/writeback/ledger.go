package writeback

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
)

// ledger is what is known of the session remote. It is a file of the Repo: where that is lost, nothing is taken for
// removed on purpose.
type ledger struct {
	remote  string // URL without secrets; what is known of another is of no use
	mode    Mode
	plain   plain
	traffic Traffic
	synced  time.Time           // when all was there last
	ground  map[object.ID]bool  // commits that the session remote has with all they reach
	refs    map[string]acquaint // by their names there
}

// acquaint is what is known of one ref.
type acquaint struct {
	acked   object.ID // that the session remote has; zero: it has none
	sent    object.ID // that it was asked to have, and did not answer; zero with sending: none
	sending bool
}

const (
	ledgerFile = "artifactfs.sent"
	ledgerHead = "artifactfs sent 1"
	none       = "-"
	gone       = "0"
)

var errLedger = errors.New("not what was written")

func newLedger(remote string) *ledger {
	return &ledger{remote: remote, ground: map[object.ID]bool{}, refs: map[string]acquaint{}}
}

// readLedger gives an empty one if there is none, if it is of another remote, or was damaged: then all refs are compared
// anew, and those that the session remote does not have as they are here, or from before, count as somebody else's.
func readLedger(repo *session.Repo, remote string) (*ledger, error) {
	text, err := os.ReadFile(filepath.Join(repo.Dir(), ledgerFile))
	if errors.Is(err, fs.ErrNotExist) {
		return newLedger(remote), nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what was sent: %w", err)
	}
	l, err := parseLedger(repo.Format(), text)
	if err != nil || l.remote != remote {
		return newLedger(remote), nil
	}
	return l, nil
}

func (l *ledger) write(repo *session.Repo) error {
	if err := disk.WriteFile(filepath.Join(repo.Dir(), ledgerFile), l.encode(), 0o644); err != nil {
		return fmt.Errorf("write what was sent: %w", err)
	}
	return nil
}

// encode writes lines of words; what may hold blanks comes last.
func (l *ledger) encode() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\nremote %s\n", ledgerHead, strconv.Quote(l.remote))
	if l.mode != ModeUnknown {
		fmt.Fprintf(&b, "mode %s\n", l.mode)
	}
	if l.traffic != (Traffic{}) {
		fmt.Fprintf(&b, "traffic %d %d %d\n", l.traffic.Sent, l.traffic.Received, l.traffic.Seeded)
	}
	if l.plain != plainUnknown {
		fmt.Fprintf(&b, "plain %s\n", l.plain)
	}
	if !l.synced.IsZero() {
		fmt.Fprintf(&b, "synced %d\n", l.synced.UnixNano())
	}
	for _, id := range slices.SortedFunc(maps.Keys(l.ground), object.ID.Compare) {
		fmt.Fprintf(&b, "ground %s\n", id)
	}
	for _, name := range slices.Sorted(maps.Keys(l.refs)) {
		r := l.refs[name]
		acked, sent := none, none
		if !r.acked.IsZero() {
			acked = r.acked.String()
		}
		switch {
		case r.sending && r.sent.IsZero():
			sent = gone
		case r.sending:
			sent = r.sent.String()
		}
		fmt.Fprintf(&b, "ref %s %s %s\n", acked, sent, name)
	}
	return b.Bytes()
}

func parseLedger(f object.Format, text []byte) (*ledger, error) {
	body, ok := strings.CutPrefix(string(text), ledgerHead+"\n")
	if !ok || !strings.HasSuffix(body, "\n") {
		return nil, errLedger
	}
	l := newLedger("")
	for line := range strings.Lines(body) {
		word, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		var err error
		switch word {
		case "remote":
			l.remote, err = strconv.Unquote(rest)
		case "mode":
			if l.mode = Mode(rest); l.mode != ModeShared && l.mode != ModeSeed && l.mode != ModeThin {
				err = errLedger
			}
		case "plain":
			if l.plain = plain(rest); l.plain != plainOwn && l.plain != plainOthers {
				err = errLedger
			}
		case "synced":
			var ns int64
			ns, err = strconv.ParseInt(rest, 10, 64)
			l.synced = time.Unix(0, ns)
		case "traffic":
			_, err = fmt.Sscanf(rest, "%d %d %d", &l.traffic.Sent, &l.traffic.Received, &l.traffic.Seeded)
		case "ground":
			var id object.ID
			id, err = parseID(f, rest)
			l.ground[id] = true
		case "ref":
			err = l.parseRef(f, rest)
		default:
			err = errLedger
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %.100q", errLedger, line)
		}
	}
	return l, nil
}

func (l *ledger) parseRef(f object.Format, text string) error {
	acked, rest, _ := strings.Cut(text, " ")
	sent, name, ok := strings.Cut(rest, " ")
	if !ok || !strings.HasPrefix(name, "refs/") {
		return errLedger
	}
	var r acquaint
	var err error
	if acked != none {
		if r.acked, err = parseID(f, acked); err != nil {
			return err
		}
	}
	switch sent {
	case none:
	case gone:
		r.sending = true
	default:
		r.sending = true
		if r.sent, err = parseID(f, sent); err != nil {
			return err
		}
	}
	l.refs[name] = r
	return nil
}

func parseID(f object.Format, text string) (object.ID, error) {
	id, err := object.ParseID(text)
	if err == nil && id.Format() != f {
		err = errLedger
	}
	return id, err
}

// learn takes up what a ref on the session remote turned out to be.
func (l *ledger) learn(name string, now object.ID) {
	if now.IsZero() {
		delete(l.refs, name)
		return
	}
	l.refs[name] = acquaint{acked: now}
}

// known returns a function that tells what the session remote has of a ref of the Repo; zero: nothing.
func (l *ledger) known(layout session.Layout) func(ref string) object.ID {
	return func(ref string) object.ID { return l.refs[layout.There(ref)].acked }
}

func (l *ledger) clone() *ledger {
	c := *l
	c.ground, c.refs = maps.Clone(l.ground), maps.Clone(l.refs)
	return &c
}
