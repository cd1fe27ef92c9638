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

// ledger records what is known about the session remote, mainly the object ids of its refs. It is stored in a file in
// the directory of the Repo. If the file is lost, the ledger is empty. Refs that are missing in the Repo are then not
// removed from the session remote, because it is not known whether this session has pushed them.
type ledger struct {
	// meta is the metadata of the session when the ledger was read. It is not stored in the file.
	meta session.Meta
	// remote is the URL of the session remote without secrets. A stored ledger with another URL is ignored.
	remote string
	// mode is the way in which the session remote gets the base commits. plain states whether the session may use
	// branch and tag names without a prefix (session.OwnerRef).
	mode    Mode
	plain   plain
	traffic Traffic // traffic of all queues of the session so far
	// synced is the last time at which no ref was pending.
	synced time.Time
	// baseCommits is the set of the base commits that the session remote has, with all objects that are reachable from
	// them.
	baseCommits map[object.ID]bool
	// refs contains what is known about each ref, by its name on the session remote.
	refs map[string]remoteRef
}

// remoteRef is what is known about one ref of the session remote.
type remoteRef struct {
	// acked is the last known object id on the session remote; zero if the ref does not exist there.
	acked object.ID
	// sent lists the new object ids of pushes that were to change the ref from acked and that the server has not
	// answered, oldest first. A zero id stands for a removal. The server may still make any one of these changes, even
	// after the process that sent the push has ended.
	sent []object.ID
}

// mayHave reports whether the ref may have the object id there on the session remote because of a push without an
// answer.
func (a remoteRef) mayHave(there object.ID) bool { return slices.Contains(a.sent, there) }

// maxSent is the maximum length of remoteRef.sent.
const maxSent = 64

// withPush returns the new state of the ref after a push that changes it from old to new was sent, until the push is
// answered. Earlier pushes without an answer remain recorded if they change the ref from the same id, because the
// server may still make these changes.
func (a remoteRef) withPush(old, new object.ID) remoteRef {
	var sent []object.ID
	if a.acked == old {
		sent = slices.DeleteFunc(slices.Clone(a.sent), func(id object.ID) bool { return id == new })
		// The length of the list is limited: the oldest values are dropped.
		sent = sent[max(0, len(sent)-maxSent+1):]
	}
	return remoteRef{acked: old, sent: append(sent, new)}
}

const (
	// ledgerFile is the name of the file with the ledger in the directory of the Repo. The file starts with the line
	// ledgerHead; the method encode writes the rest. In a line, none stands for a missing value, and gone for a
	// removal.
	ledgerFile = "artifactfs.sent"
	ledgerHead = "artifactfs sent 1"
	none       = "-"
	gone       = "0"
)

// errLedger means that the file with the ledger does not have the format of the method encode.
var errLedger = errors.New("record of pushed refs has an unexpected format")

// newLedger returns an empty ledger for the session remote with the URL remote.
func newLedger(remote string) *ledger {
	return &ledger{remote: remote, baseCommits: map[object.ID]bool{}, refs: map[string]remoteRef{}}
}

// readLedger reads the ledger of a Repo for the session remote with the given URL, and the metadata of the session. The
// ledger is empty if the file does not exist, is damaged, or was written for another URL: the ledger of another session
// remote would list refs that this one never had, as if they had been removed from it. With an empty ledger, a ref
// whose object on the session remote is not in the history of the local one counts as changed by another session.
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

// write replaces the file with the ledger in the directory of repo atomically.
func (l *ledger) write(repo *session.Repo) error {
	if err := disk.WriteFile(filepath.Join(repo.Dir(), ledgerFile), l.encode(), 0o644); err != nil {
		return fmt.Errorf("write record of pushed refs: %w", err)
	}
	return nil
}

// encode returns the contents of the file with the ledger: one record on each line, with fields that are separated by
// blanks. A field that may contain blanks is the last one of its line.
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

// parseLedger parses the contents of a file with a ledger. The object ids in it have the format f. It returns an error
// that wraps errLedger if text is not the complete output of encode.
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

// parseRef parses a line about a ref, without its first word: "ACKED SENT[,SENT...] NAME".
func (l *ledger) parseRef(f object.Format, text string) error {
	acked, rest, _ := strings.Cut(text, " ")
	sent, name, ok := strings.Cut(rest, " ")
	if !ok || !strings.HasPrefix(name, "refs/") {
		return errLedger
	}
	var r remoteRef
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

// setAcked records that the ref called name has the object id now on the session remote. If the ledger has this id
// already, it keeps the pushes without an answer, because the server may still make their changes.
func (l *ledger) setAcked(name string, now object.ID) {
	r := l.refs[name]
	if r.acked != now {
		r = remoteRef{acked: now}
	}
	l.set(name, r)
}

// set sets the entry of the ref called name to r, or removes the entry if r is empty.
func (l *ledger) set(name string, r remoteRef) {
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

// known returns the last known object id on the session remote of a ref, which is given by its name in the Repo. It
// returns the zero id if the ref is not known to exist there.
func (l *ledger) known(ref string) object.ID { return l.refs[l.layout().There(ref)].acked }

// pending returns the number of refs whose local object is not on the session remote, and of removed refs that still
// exist there. A ref whose object was pushed to its diverged name is not pending. local contains the refs of the Repo
// by their names on the session remote.
func (l *ledger) pending(local map[string]object.ID) int {
	n, layout := 0, l.layout()
	for there, id := range local {
		ref, users := layout.Here(there)
		// A diverged value counts as pushed.
		other := session.DivergedRef(layout.Session, ref)
		if l.refs[there].acked != id &&
			!(users && (l.refs[other].acked == id || l.refs[divergedOwn(other, id)].acked == id)) {
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

// clone returns a copy of the ledger whose maps can be changed independently.
func (l *ledger) clone() *ledger {
	c := *l
	c.baseCommits, c.refs = maps.Clone(l.baseCommits), maps.Clone(l.refs)
	return &c
}
