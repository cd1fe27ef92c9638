package events

import (
	"bytes"
	"path/filepath"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/annotate"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/reffile"
)

// Types of events about acts of users on sessions, which the vendor's API does not have. They are derived from the
// updates of refs, so an act has the same event whether it is made by the REST API, on the page, or by a push.
const (
	annotatedType  = "artifactfs.session.annotated"
	requestedType  = "artifactfs.session.approval.requested"
	grantedType    = "artifactfs.session.approval.granted"
	deniedType     = "artifactfs.session.approval.denied"
	withdrawnType  = "artifactfs.session.approval.withdrawn"
	mergedType     = "artifactfs.session.merged"
	closedType     = "artifactfs.session.closed"
	archivedType   = "artifactfs.session.archived"
	reopenedType   = "artifactfs.session.reopened"
	sessionGone    = "artifactfs.session.deleted"
	pinnedType     = "artifactfs.session.pinned"
	unpinnedType   = "artifactfs.session.unpinned"
	policyType     = "artifactfs.policy.changed"
	maxActs        = 100 // maximum number of events about acts in one ref of a push; further acts have no event
	maxActedObject = 16 << 20
)

// Merge describes an update of a branch that merges a session.
type Merge struct {
	Ref     string
	Session string
	Request string // id of the request for approval that has allowed the merge; "" if none was needed
}

// Acts finds the acts in the updates of a push. dir is a git directory that has all objects. It returns a function that
// makes the events of the acts whose updates were made. An object that cannot be read causes no events.
func Acts(dir string, repo records.Repo, updates []records.RefUpdate, merges []Merge) func(
	s Stamp, done []records.RefUpdate) []records.Event {
	r := actReader{dir: dir, repo: repo}
	defer r.close()
	found := map[string][]act{}
	for _, u := range updates {
		if u.Old == u.New {
			continue
		}
		found[u.Name] = r.acts(u)
		for _, m := range merges {
			if m.Ref == u.Name && !u.Removes() {
				p := merged{m.Session, strings.TrimPrefix(u.Name, "refs/heads/"), before(u), u.New, m.Request}
				found[u.Name] = append(found[u.Name], act{mergedType, p})
			}
		}
	}
	return func(s Stamp, done []records.RefUpdate) (list []records.Event) {
		for _, u := range done {
			for _, a := range found[u.Name] {
				list = append(list, s.event(a.kind, repo, a.payload))
			}
		}
		return list
	}
}

// act is an event that must be added if its update is made.
type act struct {
	kind    string
	payload any
}

type (
	annotated struct {
		Session    string    `json:"session"`
		ID         string    `json:"id"`
		Thread     string    `json:"thread"`
		Op         string    `json:"op"`
		Actor      string    `json:"actor"`
		Text       string    `json:"text"`
		Truncated  bool      `json:"textTruncated"`
		Checkpoint string    `json:"checkpoint,omitempty"`
		Commit     string    `json:"commit,omitempty"`
		Path       string    `json:"path,omitempty"`
		Line       int       `json:"line,omitempty"`
		End        int       `json:"end,omitempty"`
		At         time.Time `json:"at"`
	}
	decided struct {
		Session    string `json:"session"`
		Request    string `json:"request"`
		Record     string `json:"record"`
		Actor      string `json:"actor"`
		Action     string `json:"action"`
		Checkpoint string `json:"checkpoint"`
		Branch     string `json:"branch"`
		Base       string `json:"base"`
		Tree       string `json:"tree"`
		Text       string `json:"text"`
		Truncated  bool   `json:"textTruncated"`
	}
	merged struct {
		Session string `json:"session"`
		Branch  string `json:"branch"`
		Before  string `json:"before"`
		After   string `json:"after"`
		Request string `json:"request"`
	}
	changed struct {
		Session string `json:"session"`
		Actor   string `json:"actor"`
		Reason  string `json:"reason"`
	}
	pinned struct {
		Session string `json:"session"`
		Name    string `json:"name"`
		Commit  string `json:"commit"` // commit of the checkpoint
	}
	policyChanged struct {
		Before string `json:"before"`
		After  string `json:"after"`
	}
	named struct {
		Session string `json:"session"`
	}
)

// before returns the value of a ref before an update; "" if the ref did not exist.
func before(u records.RefUpdate) string {
	if u.Creates() {
		return ""
	}
	return u.Old
}

// after returns the value of a ref after an update; "" if the update removes the ref.
func after(u records.RefUpdate) string {
	if u.Removes() {
		return ""
	}
	return u.New
}

// actReader reads the objects that are needed to find the acts in a push.
type actReader struct {
	dir     string
	repo    records.Repo
	objects *odb.Store // objects of the git directory; opened when the first object is read
}

func (r *actReader) close() {
	if r.objects != nil {
		r.objects.Close()
	}
}

// acts returns the acts in an update.
func (r *actReader) acts(u records.RefUpdate) []act {
	rest, ok := strings.CutPrefix(u.Name, session.Prefix)
	if !ok {
		return nil
	}
	kind, name, _ := strings.Cut(rest, "/")
	switch {
	case u.Name == approval.PolicyRef:
		return []act{{policyType, policyChanged{before(u), after(u)}}}
	case u.Name == session.AnnotationsRef(name) && !u.Removes():
		return r.annotations(u, name)
	case u.Name == approval.Ref(name) && !u.Removes():
		return r.approvals(u, name)
	case u.Name == session.MetaRef(name) && u.Removes():
		return []act{{sessionGone, named{name}}}
	case u.Name == session.MetaRef(name) && !u.Creates():
		return r.state(u, name)
	case kind == "pin":
		name, pin, _ := strings.Cut(name, "/")
		if u.Removes() {
			return []act{{unpinnedType, pinned{name, pin, u.Old}}}
		}
		return []act{{pinnedType, pinned{name, pin, u.New}}}
	}
	return nil
}

// file returns the contents of the file of a ref at a commit, or nil if they cannot be read.
func (r *actReader) file(f reffile.File, commit string) []byte {
	id, ok := r.open(commit)
	if !ok {
		return nil
	}
	text, err := f.Content(r.objects, id)
	if err != nil || len(text) > maxActedObject {
		return nil
	}
	return text
}

// open parses an object id, and opens the objects if they are not open yet. ok is false if either fails.
func (r *actReader) open(commit string) (id object.ID, ok bool) {
	format, err := object.ParseFormat(r.repo.ObjectFormat)
	if err == nil {
		id, err = object.ParseIDOf(format, commit)
	}
	if err == nil && r.objects == nil {
		r.objects, err = odb.Open(filepath.Join(r.dir, "objects"), format)
	}
	return id, err == nil
}

// annotations returns acts for the annotations that an update adds.
func (r *actReader) annotations(u records.RefUpdate, name string) (list []act) {
	f := reffile.File{Ref: u.Name, Name: annotate.LogFile}
	known := map[string]bool{}
	if u.Creates() {
		if r.hasParent(u.New) { // the commit brings back a deleted session, whose annotations were reported before
			return nil
		}
	} else {
		for _, a := range annotate.Parse(r.file(f, u.Old)) {
			known[a.ID] = true
		}
	}
	for _, a := range annotate.Parse(r.file(f, u.New)) {
		if known[a.ID] || len(list) == maxActs {
			continue
		}
		p := annotated{Session: name, ID: a.ID, Thread: a.Thread, Op: string(a.Op), Actor: a.Actor, At: a.Time.UTC()}
		if p.Text, p.Truncated = truncate(a.Text); a.On != nil {
			p.Checkpoint, p.Commit, p.Path, p.Line, p.End = a.On.Checkpoint, a.On.Commit, a.On.Path, a.On.Line, a.On.End
		}
		list = append(list, act{annotatedType, p})
	}
	return list
}

// hasParent reports whether a commit has a parent.
func (r *actReader) hasParent(commit string) bool {
	id, ok := r.open(commit)
	if !ok {
		return false
	}
	_, text, err := r.objects.Get(id, object.MaxCommitSize)
	if err != nil {
		return false
	}
	info, err := object.ParseCommit(r.objects.Format(), text)
	return err == nil && len(info.Parents) > 0
}

// approvals returns acts for the records of approvals that an update adds.
func (r *actReader) approvals(u records.RefUpdate, name string) (list []act) {
	f := reffile.File{Ref: u.Name, Name: approval.LogFile}
	skip := 0
	if !u.Creates() {
		skip = bytes.Count(r.file(f, u.Old), []byte("\n"))
	}
	l, err := approval.ParseLog(name, r.file(f, u.New))
	if err != nil {
		return nil
	}
	for _, record := range l.Records[min(skip, len(l.Records)):] {
		request := record
		if record.Op != approval.Request {
			request, _ = l.Find(record.Request)
		}
		kind := map[approval.Op]string{approval.Request: requestedType, approval.Grant: grantedType,
			approval.Deny:     deniedType,
			approval.Withdraw: withdrawnType}[record.Op]
		if request.Subject == nil || len(list) == maxActs {
			continue
		}
		p := decided{Session: name, Request: request.ID, Record: record.ID, Actor: record.Actor,
			Action:     string(request.Subject.Action),
			Checkpoint: request.Subject.Checkpoint, Branch: strings.TrimPrefix(request.Subject.Target, "refs/heads/"),
			Base: request.Subject.Base,
			Tree: request.Subject.Tree}
		p.Text, p.Truncated = truncate(record.Text)
		list = append(list, act{kind, p})
	}
	return list
}

// state returns the act of an update that closes, archives or reopens a session.
func (r *actReader) state(u records.RefUpdate, name string) []act {
	was, known := r.meta(u.Old)
	now, valid := r.meta(u.New)
	if !known || !valid || was.State == now.State || len(now.Transitions) == 0 {
		return nil
	}
	ended := func(s session.LifeState) bool { return s == session.Closed || s == session.Archived }
	kind := ""
	switch {
	case now.State == session.Closed:
		kind = closedType
	case now.State == session.Archived:
		kind = archivedType
	case ended(was.State):
		kind = reopenedType
	default:
		return nil
	}
	last := now.Transitions[len(now.Transitions)-1]
	return []act{{kind, changed{name, last.Actor, last.Reason}}}
}

func (r *actReader) meta(commit string) (m session.Meta, ok bool) {
	id, ok := r.open(commit)
	if !ok {
		return m, false
	}
	m, err := session.MetaAt(r.objects, r.objects.Format(), id)
	return m, err == nil
}
