package promotion

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/diff"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/treediff"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/review"
	"github.com/artifactfs/artifactfs/session/transcript"
)

// Limits of a summary.
const (
	maxLine    = 200  // maximum length of a name or a prompt in bytes
	maxCommits = 100  // maximum number of commits
	maxFiles   = 300  // maximum number of files
	maxCounted = 2000 // number of changed files above which lines are not counted
	maxOthers  = 50   // maximum number of notes, of facts and of prompts
	maxNote    = 2000 // maximum length of a note in bytes
	maxHandoff = 4000 // maximum length of the handoff in bytes
)

// summary is the state of one request for a summary of a session. Only one goroutine uses it.
type summary struct {
	o     *Session
	r     control.SessionSummaryRequest
	point session.Checkpoint
	work  *history // commits of the session
	reply *control.SessionSummaryReply
}

// Summarise returns a summary of the changes of a session up to the checkpoint p: commits, files, notes, facts and
// prompts.
func Summarise(ctx context.Context, o *Session, p session.Checkpoint,
	r control.SessionSummaryRequest) (control.SessionSummaryReply, error) {
	reply := NoSummary(o.Name)
	s := &summary{o: o, r: r, point: p, reply: &reply}
	return reply, s.fill(ctx)
}

// NoSummary returns the summary of a session in which nothing has changed.
func NoSummary(name string) control.SessionSummaryReply {
	return control.SessionSummaryReply{Session: name, Commits: []control.SummaryCommit{}, Files: []control.SummaryFile{},
		Notes: []control.SummaryNote{}, Facts: []control.Fact{}, Prompts: []control.SummaryPrompt{}}
}

// fill sets the fields of the reply.
func (s *summary) fill(ctx context.Context) (err error) {
	s.reply.Checkpoint = string(s.point.ID)
	s.work = &history{}
	if !s.point.Head.IsZero() {
		s.reply.Head = s.point.Head.String()
		if s.work, err = s.o.history(ctx, s.point.Head); err != nil {
			return err
		}
	}
	base, commits, err := s.base(ctx)
	if err != nil {
		return err
	}
	s.reply.Commits, s.reply.TotalCommits = shownCommits(commits), int64(len(commits))
	if err := s.files(ctx, base); err != nil {
		return err
	}
	if err := s.notes(ctx, commits); err != nil {
		return err
	}
	if err := s.facts(ctx); err != nil {
		return err
	}
	if err := s.prompts(ctx); err != nil {
		return err
	}
	s.reply.Title = review.Title(texts(commits))
	if s.reply.Title == "" && len(s.reply.Prompts) > 0 {
		s.reply.Title = review.Shorten(s.reply.Prompts[0].Text, 72)
	}
	s.reply.Title = cmp.Or(s.reply.Title, "Changes of session "+s.o.Name)
	return nil
}

// base returns the base of the summary: the tree with which the files are compared, and the commits since that tree.
func (s *summary) base(ctx context.Context) (tree object.ID, commits []owned, err error) {
	if s.r.Since != "" {
		return s.since(ctx)
	}
	// If the user has merged commits of the mounted remote into the session, the newest of them is the base.
	var newest object.ID
	var info object.CommitInfo
	for _, id := range s.work.bases {
		c, err := s.o.Repo.Commit(id)
		if err != nil {
			return tree, nil, err
		}
		if newest.IsZero() || c.Committed.After(info.Committed) {
			newest, info = id, c
		}
	}
	if newest.IsZero() { // the branch was unborn
		return tree, s.work.commits, nil
	}
	s.reply.Base = newest.String()
	return info.Tree, s.work.commits, nil
}

// since returns the base of the summary for r.Since, which names a commit or a checkpoint: its tree, and the commits
// since.
func (s *summary) since(ctx context.Context) (tree object.ID, commits []owned, err error) {
	seen := map[object.ID]bool{}
	if id, ok := s.named(s.r.Since); ok {
		s.reply.Base = id.String()
		tree, err = s.o.Repo.TreeOf(id)
		return tree, s.work.without(s.work.ancestors(id)), err
	}
	p, err := s.o.Find(ctx, s.r.Since)
	if err != nil {
		return tree, nil, err
	}
	if !p.Head.IsZero() {
		seen = s.work.ancestors(p.Head)
	}
	s.reply.Base = p.Session + "@" + string(p.ID)
	return p.Tree, s.work.without(seen), nil
}

// named returns the commit whose ID begins with the text word, among the commits of the session and those on which it
// is based. The text must have at least seven digits, and name one commit only.
func (s *summary) named(word string) (id object.ID, ok bool) {
	const least = 7
	all := slices.Clone(s.work.bases)
	for _, c := range s.work.commits {
		all = append(all, c.id)
	}
	for _, c := range all {
		if len(word) >= least && strings.HasPrefix(c.String(), strings.ToLower(word)) {
			if ok {
				return id, false
			}
			id, ok = c, true
		}
	}
	return id, ok
}

// files adds to the reply the files that differ between the tree base and the checkpoint, or its HEAD commit.
func (s *summary) files(ctx context.Context, base object.ID) error {
	to := s.point.Tree
	if s.r.Committed {
		head, err := s.o.Repo.TreeOf(s.point.Head)
		if err != nil {
			return err
		}
		to = head
	} else {
		paths, err := s.o.uncommitted(ctx, s.point)
		if err != nil {
			return err
		}
		s.reply.Uncommitted = int64(len(paths))
	}
	changes, err := s.o.changes(ctx, base, to)
	if err != nil {
		return err
	}
	files := map[string]control.SummaryFile{}
	for _, c := range changes {
		files[c.Path] = control.SummaryFile{Path: c.Path, Status: c.Status, Added: -1, Removed: -1}
	}
	if s.reply.Uncounted = len(changes) > maxCounted; !s.reply.Uncounted && len(changes) > 0 {
		if err := s.count(ctx, files, changes, base, to); err != nil {
			return err
		}
	}
	s.reply.TotalFiles = int64(len(files))
	for _, f := range files {
		s.reply.LinesAdded, s.reply.LinesRemoved = s.reply.LinesAdded+max(f.Added, 0), s.reply.LinesRemoved+max(f.Removed, 0)
		s.reply.Files = append(s.reply.Files, f)
	}
	slices.SortFunc(s.reply.Files, func(a, b control.SummaryFile) int { return strings.Compare(a.Path, b.Path) })
	s.reply.Files = s.reply.Files[:min(len(s.reply.Files), maxFiles)]
	return nil
}

// count adds the numbers of changed lines to files, and replaces the two entries of a renamed file by one. It fetches
// the contents that git compares.
func (s *summary) count(ctx context.Context, files map[string]control.SummaryFile, changes []control.PathChange,
	from, to object.ID) error {
	if err := s.o.provide(ctx, changes); err != nil {
		return fmt.Errorf("fetch contents: %w", err)
	}
	f := s.o.Repo.Format()
	out, err := s.o.git(ctx, "diff-tree", "-r", "-z", "--numstat", "--find-renames", "--no-ext-diff", "--no-textconv",
		treediff.Name(f, from), treediff.Name(f, to))
	if err != nil {
		return err
	}
	for _, c := range diff.Counts(out) {
		file, ok := files[c.Path]
		if !ok {
			continue
		}
		if file.Added, file.Removed = c.Added, c.Removed; c.From != "" {
			file.From, file.Status = c.From, "R"
			delete(files, c.From)
		}
		files[c.Path] = file
	}
	return nil
}

// notes adds to the reply the git notes on the given commits, as they were at the checkpoint.
func (s *summary) notes(ctx context.Context, commits []owned) error {
	state, err := s.o.State(ctx, s.point)
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, c := range commits {
		wanted[c.id.String()] = true
	}
	type found struct {
		commit, ref string
		blob        object.ID
	}
	var all []found
	var ids []object.ID
	for _, ref := range state.Refs {
		name, ok := strings.CutPrefix(ref.Name, "refs/notes/")
		if !ok {
			continue
		}
		tree, err := s.o.Repo.TreeOf(ref.ID)
		if err != nil {
			continue // the notes of other sessions need not be on this host
		}
		// The path of a note is the id of the commit, which slashes may divide.
		err = treediff.Trees(ctx, s.o.Tree, object.ID{}, tree, func(path string, _, to object.TreeEntry) error {
			if commit := strings.ReplaceAll(path, "/", ""); wanted[commit] && len(all) < maxOthers {
				all, ids = append(all, found{commit, name, to.ID}), append(ids, to.ID)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if err := s.o.fetch(ctx, ids); err != nil {
		return err
	}
	for _, n := range all {
		if _, text, err := s.o.Repo.Get(n.blob, object.MaxCommitSize); err == nil {
			s.reply.Notes = append(s.reply.Notes, control.SummaryNote{Commit: n.commit, Ref: n.ref,
				Text: review.Shorten(string(text), maxNote)})
		}
	}
	return nil
}

// facts adds to the reply the facts and the handoff of the session.
func (s *summary) facts(ctx context.Context) error {
	facts, _, err := transcript.ReadFacts(s.o.Repo, s.o.Name, s.o.provider(ctx))
	if err != nil {
		return err
	}
	for _, f := range facts.Facts[max(0, len(facts.Facts)-maxOthers):] {
		f.Text = review.Shorten(f.Text, maxNote)
		s.reply.Facts = append(s.reply.Facts, control.Fact(f))
	}
	s.reply.Handoff = review.Shorten(facts.Handoff, maxHandoff)
	return nil
}

// prompts adds to the reply the user's prompts in the transcript of the session.
func (s *summary) prompts(ctx context.Context) error {
	all, _, err := transcript.Read(s.o.Repo, s.o.Name, s.o.provider(ctx))
	if err != nil {
		return err
	}
	for _, l := range all {
		if !l.StartsTurn || l.Erased != nil {
			continue
		}
		if text := promptText(l.Record); text != "" {
			s.reply.TotalPrompts++
			s.reply.Prompts = append(s.reply.Prompts, control.SummaryPrompt{Turn: l.Turn, Time: l.Time.UTC(), Text: text})
		}
	}
	s.reply.Prompts = s.reply.Prompts[max(0, len(s.reply.Prompts)-maxOthers):]
	return nil
}

// promptText returns the text of the prompt in a transcript record as one line. The text is the member "text" or
// "content" of the record, which is a string or a list of objects with the member "text".
func promptText(record json.RawMessage) string {
	var r struct {
		Text    string          `json:"text"`
		Content json.RawMessage `json:"content"`
	}
	if json.Unmarshal(record, &r) != nil {
		return ""
	}
	text := r.Text
	if text == "" && json.Unmarshal(r.Content, &text) != nil {
		var parts []struct {
			Text string `json:"text"`
		}
		if json.Unmarshal(r.Content, &parts) != nil {
			return ""
		}
		for _, part := range parts {
			text += part.Text + " "
		}
	}
	return review.Shorten(strings.Join(strings.Fields(text), " "), maxLine)
}
