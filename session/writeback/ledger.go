package writeback

import (
	"bytes"
	"cmp"
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
	acked object.ID // that the session remote has; zero: it has none
	// sent are the values that pushes without an answer were about to put in the place of acked, oldest first; zero: a removal.
	// A server may make any one of them so later, also after the process that sent it is gone.
	sent []object.ID
}

// mayBe reports whether a push without an answer was about to make the ref there.
func (a acquaint) mayBe(there object.ID) bool { return slices.Contains(a.sent, there) }

// sentMost is how many values of one ref are kept that were sent without an answer.
const sentMost = 64

// sends returns what is known while a push from old to new is under way. Earlier pushes that were not answered are still
// open if they began with the same value.
func (a acquaint) sends(old, new object.ID) acquaint {
	var sent []object.ID
	if a.acked == old {
		sent = slices.DeleteFunc(slices.Clone(a.sent), func(id object.ID) bool { return id == new })
		sent = sent[max(0, len(sent)-sentMost+1):]
	}
	return acquaint{acked: old, sent: append(sent, new)}
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
		acked := none
		if !r.acked.IsZero() {
			acked = r.acked.String()
		}
		sent := []string{}
		for _, id := range r.sent {
			if id.IsZero() {
				sent = append(sent, gone)
			} else {
				sent = append(sent, id.String())
			}
		}
		fmt.Fprintf(&b, "ref %s %s %s\n", acked, cmp.Or(strings.Join(sent, ","), none), name)
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
			id, err = object.ParseIDOf(f, rest)
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
		if r.acked, err = object.ParseIDOf(f, acked); err != nil {
			return err
		}
	}
	if sent != none {
		for word := range strings.SplitSeq(sent, ",") {
			var id object.ID
			if word != gone {
				if id, err = object.ParseIDOf(f, word); err != nil {
					return err
				}
			}
			r.sent = append(r.sent, id)
		}
	}
	l.refs[name] = r
	return nil
}

// learn takes up what a ref on the session remote turned out to be. While that has not changed, pushes without an answer
// stay open.
func (l *ledger) learn(name string, now object.ID) {
	r := l.refs[name]
	if r.acked != now {
		r = acquaint{acked: now}
	}
	l.set(name, r)
}

func (l *ledger) set(name string, r acquaint) {
	if r.acked.IsZero() && len(r.sent) == 0 {
		delete(l.refs, name)
		return
	}
	l.refs[name] = r
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
