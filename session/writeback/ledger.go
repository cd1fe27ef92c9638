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

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
)

// ledger records the last known state of the session remote, mainly the values of its refs. It is stored in a file in the
// directory of the Repo. If that file is lost, the ledger is empty, and a ref that is missing in the Repo is not removed
// from the session remote, because it is not known whether this session pushed the ref.
type ledger struct {
	// meta is the session's metadata when the ledger was read; it is not stored in the file.
	meta session.Meta
	// remote is the URL of the session remote without secrets. A stored ledger with another URL is ignored.
	remote string
	// mode is the way in which the session remote obtains the base commits. plain states whether the session may use
	// branch and tag names without a prefix (session.OwnerRef).
	mode    Mode
	plain   plain
	traffic Traffic // bytes that all queues of the session have transferred
	// synced is the last time at which no ref was pending.
	synced time.Time
	// baseCommits holds the base commits that the session remote has, together with all objects that these commits reach.
	baseCommits map[object.ID]bool
	// refs holds the knowledge about each ref, by its name on the session remote.
	refs map[string]acquaint
}

// acquaint records the last known state of one ref of the session remote.
type acquaint struct {
	// acked is the last known value on the session remote; zero if the ref does not exist there.
	acked object.ID
	// sent holds the new values of pushes that the server has not answered and that were to move the ref from acked, oldest
	// first; a zero value stands for a removal. The server may still apply any one of these pushes, even after the process that
	// sent the push has ended.
	sent []object.ID
}

// mayBe reports whether the ref may have the value there on the session remote, because a push without an answer has sent that
// value.
func (a acquaint) mayBe(there object.ID) bool { return slices.Contains(a.sent, there) }

// sentMost is the maximum length of acquaint.sent.
const sentMost = 64

// sends returns the state to record for the ref when a push that moves the ref from old to new was sent and is not answered yet.
// Earlier pushes without an answer stay recorded if they move the ref from the same value, because the server may still apply
// these pushes.
func (a acquaint) sends(old, new object.ID) acquaint {
	var sent []object.ID
	if a.acked == old {
		sent = slices.DeleteFunc(slices.Clone(a.sent), func(id object.ID) bool { return id == new })
		// The length of the list is limited: the oldest values are dropped.
		sent = sent[max(0, len(sent)-sentMost+1):]
	}
	return acquaint{acked: old, sent: append(sent, new)}
}

const (
	// ledgerFile is the name of the ledger's file in the Repo's directory. The file starts with the line ledgerHead; the method
	// encode writes the rest. In a line of the file, the text of the constant none stands for a missing value, and the text of the
	// constant gone for a removal.
	ledgerFile = "artifactfs.sent"
	ledgerHead = "artifactfs sent 1"
	none       = "-"
	gone       = "0"
)

// errLedger is returned for a ledger's file that is not in the format of the method encode.
var errLedger = errors.New("file of the ledger has an unexpected format")

// newLedger returns an empty ledger for the session remote with the URL remote.
func newLedger(remote string) *ledger {
	return &ledger{remote: remote, baseCommits: map[object.ID]bool{}, refs: map[string]acquaint{}}
}

// readLedger reads the ledger of a Repo for the session remote with the URL remote, and the metadata of the Repo's session. The
// ledger is empty if the file does not exist, is damaged, or was written for another URL: a ledger of another session remote
// would list refs that this remote never had, as if they had been removed from it. With an empty ledger, a ref whose value on
// the session remote is not in the local history counts as moved by another session.
func readLedger(repo *session.Repo, remote string) (*ledger, error) {
	l := newLedger(remote)
	text, err := os.ReadFile(filepath.Join(repo.Dir(), ledgerFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read record of pushed refs: %w", err)
	}
	if stored, err := parseLedger(repo.Format(), text); err == nil && stored.remote == remote {
		l = stored
	}
	l.meta, _, err = session.ReadMeta(repo, repo.Session())
	if errors.Is(err, session.ErrNoMeta) || errors.Is(err, session.ErrNotMeta) { // a new session has no metadata yet
		l.meta, err = session.Meta{Session: repo.Session(), Format: repo.Format().String()}, nil
	}
	return l, err
}

// write replaces the ledger's file in the directory of repo atomically.
func (l *ledger) write(repo *session.Repo) error {
	if err := disk.WriteFile(filepath.Join(repo.Dir(), ledgerFile), l.encode(), 0o644); err != nil {
		return fmt.Errorf("write record of pushed refs: %w", err)
	}
	return nil
}

// encode returns the contents of the ledger's file: one record per line, with fields that are separated by blanks. A field
// that may contain blanks is the last one of its line.
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
	for _, id := range slices.SortedFunc(maps.Keys(l.baseCommits), object.ID.Compare) {
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

// parseLedger parses the contents of a ledger's file with object IDs of format f. It returns errLedger if text is not the
// complete output of encode.
func parseLedger(f object.Format, text []byte) (*ledger, error) {
	body, ok := strings.CutPrefix(string(text), ledgerHead+"\n")
	// A file without a newline at its end was truncated.
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
			l.baseCommits[id] = true
		case "ref":
			err = l.parseRef(f, rest)
		default:
			err = errLedger
		}
		if err != nil {
			return nil, fmt.Errorf("%w: invalid line %.100q", errLedger, line)
		}
	}
	return l, nil
}

// parseRef parses the rest of a ref line: "ACKED SENT[,SENT...] NAME".
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

// learn records that the ref called name has the value in the parameter now on the session remote. If the ledger has that value
// already, pushes without an answer stay recorded, because the server may still apply them.
func (l *ledger) learn(name string, now object.ID) {
	r := l.refs[name]
	if r.acked != now {
		r = acquaint{acked: now}
	}
	l.set(name, r)
}

// set records r as the state of the ref called name. If r is empty, set removes the ref from the ledger.
func (l *ledger) set(name string, r acquaint) {
	if r.acked.IsZero() && len(r.sent) == 0 {
		delete(l.refs, name)
		return
	}
	l.refs[name] = r
}

// layout returns the mapping between the names of refs in the Repo and on the session remote.
func (l *ledger) layout() session.Layout {
	return session.Layout{Session: l.meta.Session, Branches: l.meta.Branches, Own: l.plain == plainOwn}
}

// known returns the last known value on the session remote of a ref, by its name in the Repo; it is the zero id if the ref is
// not known to exist there.
func (l *ledger) known(ref string) object.ID { return l.refs[l.layout().There(ref)].acked }

// pending returns the number of refs whose local value is not on the session remote. A ref whose value was pushed under the
// diverged name of the ref does not count. pending also counts refs that were removed in the Repo and still exist on the session
// remote. The map local holds the refs of the Repo, by their names on the session remote.
func (l *ledger) pending(local map[string]object.ID) int {
	n, layout := 0, l.layout()
	for there, id := range local {
		ref, users := layout.Here(there)
		// A diverged value counts as pushed.
		other := session.DivergedRef(layout.Session, ref)
		if l.refs[there].acked != id && !(users && (l.refs[other].acked == id || l.refs[divergedOwn(other, id)].acked == id)) {
			n++
		}
	}
	for there, r := range l.refs {
		// A removal is pending while the session remote still has the ref. Removals of notes refs are never pushed.
		if _, here := local[there]; !here && !r.acked.IsZero() && isSent(there, layout) && !isNotes(there) {
			n++
		}
	}
	return n
}

// clone returns a copy that can be changed independently.
func (l *ledger) clone() *ledger {
	c := *l
	c.baseCommits, c.refs = maps.Clone(l.baseCommits), maps.Clone(l.refs)
	return &c
}
