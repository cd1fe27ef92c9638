package ui

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/session"
)

const pathsPage = 200 // paths on a page of a comparison

// comparePage shows up to maxProposals proposals beside each other.
type comparePage struct {
	frame
	Base, BaseTree string // what all changes are relative to, "" if the proposals have several bases, and the path of its page
	Proposals      []proposalRow
	Pairs          []pairRow
	Views          []viewLink
	Rows           []pathRow
	Total          int // number of changed paths
	Shared         int // of these, changed by two or more proposals
	Conflicts      int // of these, with conflicts
	Listed         int // number of paths in the chosen view
	Truncated      bool
	Before, Next   string
	Exact          string // path of a page that always shows these versions; "": this one does
	Commands       []command
}

// proposalRow is a proposal with its totals.
type proposalRow struct {
	Letter, Name     string
	Page, Tree, Diff string // paths of pages: the session, its files, and the difference from the base
	Adopt            string // path of the page that confirms a merge of the session, "" if the token does not allow it
	State            session.LifeState
	Subject, Author  string
	control.ComparedSide
	Truncated bool
	Result    testResult
}

// pairRow has the results of the merges of one proposal with all of them.
type pairRow struct {
	Letter string
	Cells  []pairCell
}

// pairCell is the result of a merge: a verdict, and the difference of the two. Verdict is "" for a proposal and itself, and "apart" if no
// path was changed by both.
type pairCell struct {
	With    string
	Verdict string
	Text    string
	Diff    string
}

// viewLink selects the paths that are listed.
type viewLink struct {
	Name, Path string
	Chosen     bool
}

// pathRow is a path with what each proposal has done to it.
type pathRow struct {
	Path    string
	Verdict control.Verdict // "" if one proposal alone has changed the path
	Text    string
	Cells   []pathCell
}

// pathCell is what one proposal has done to a path. Link is "" if it has not changed the path.
type pathCell struct {
	Letter string
	Status string
	Counts changeRow
	Link   string
	Clash  bool
}

// comparePoints shows the points that the request names.
func (p *place) comparePoints(ctx context.Context) error {
	names := p.r.URL.Query()["p"]
	for i, name := range slices.Backward(names) {
		if name == "" || slices.Contains(names[:i], name) {
			names = slices.Delete(names, i, i+1)
		}
	}
	if len(names) < 2 || len(names) > maxProposals {
		return &Problem{http.StatusBadRequest, "Which proposals?",
			fmt.Sprintf("Select two to %d sessions or branches to compare; you have selected %d.", maxProposals, len(names))}
	}
	first, err := strconv.Atoi(cmp.Or(p.r.FormValue("from"), "0"))
	if err != nil || first < 0 {
		return missing("The comparison has no such page.")
	}
	page := comparePage{frame: p.frame("Compare "+number(len(names), "proposal", "proposals"), p.within()...)}
	c := &comparison{place: p, trees: map[string]string{}}
	err = p.read(ctx, func(g gitread.Repo) (err error) {
		if c.refs, err = p.refs(ctx); err != nil {
			return err
		}
		c.g = g
		return c.load(ctx, names)
	})
	if err != nil {
		return err
	}
	if page.Base = c.base; c.baseName != "" {
		page.BaseTree = p.treePath(c.baseName, "")
	}
	var exact, sessions []string
	for i, s := range c.sides {
		page.Proposals = append(page.Proposals, c.proposalRow(i, s))
		page.Truncated = page.Truncated || s.truncated
		exact = append(exact, "p", s.exact)
		if s.session != "" {
			sessions = append(sessions, s.exact)
		}
	}
	if page.Exact = p.path + "/compare" + query(exact...); page.Exact == p.path+"/compare"+query(pointsOf(names)...) {
		page.Exact = ""
	}
	if len(sessions) == len(c.sides) {
		page.Commands = []command{{"Compare", "artifactfs session compare --session-remote " + control.ShellWord(p.remote()) + " " +
			strings.Join(sessions, " ")}}
	}
	page.Pairs = c.pairRows()
	c.listPaths(names, first, &page)
	return p.send(http.StatusOK, "compare.html", page)
}

// pointsOf returns the pairs of a query that selects points.
func pointsOf(names []string) (pairs []string) {
	for _, name := range names {
		pairs = append(pairs, "p", name)
	}
	return pairs
}

// letterOf returns the letter that stands for a proposal.
func letterOf(i int) string { return string(rune('A' + i)) }

func (c *comparison) proposalRow(i int, s *proposal) proposalRow {
	row := proposalRow{Letter: letterOf(i), Name: shown(s.name), Tree: c.treePath(s.exact, ""), State: s.meta.State, Subject: s.subject,
		Author: s.author, ComparedSide: s.ComparedSide, Truncated: s.truncated, Result: s.result}
	row.Diff = c.path + "/diff" + query("a", s.baseID(), "b", s.exact)
	if s.session != "" {
		_, checkpoint := control.SplitCheckpoint(s.exact)
		row.Page = c.sessionPath(s.session) + query("at", checkpoint)
		if c.doing(c.refs, s.session).Merge {
			row.Adopt = c.sessionPath(s.session) + "/merge"
		}
	}
	return row
}

// baseID returns the id of the tree to which the changes are relative.
func (s *proposal) baseID() string {
	if s.base != "" {
		return s.base
	}
	id, _ := object.ParseID(s.tree) // git has written it
	return object.EmptyTree(id.Format()).String()
}

// pairRows returns the results of all merges as a square.
func (c *comparison) pairRows() []pairRow {
	type tally struct {
		conflicts, common int
		clean             bool
	}
	found := map[[2]int]*tally{}
	for _, pair := range c.pairs {
		found[[2]int{pair.A, pair.B}] = &tally{}
	}
	for _, path := range c.shared {
		for _, pair := range path.Pairs {
			t := found[[2]int{pair.A, pair.B}]
			switch t.common++; pair.Verdict {
			case control.VerdictConflict:
				t.conflicts++
			case control.VerdictClean:
				t.clean = true
			case control.VerdictSame:
			}
		}
	}
	var rows []pairRow
	for i, a := range c.sides {
		row := pairRow{Letter: letterOf(i)}
		for j, b := range c.sides {
			cell := pairCell{With: letterOf(j)}
			if i != j {
				t := found[[2]int{min(i, j), max(i, j)}]
				switch {
				case t.conflicts > 0:
					cell.Verdict, cell.Text = string(control.VerdictConflict), number(t.conflicts, "conflict", "conflicts")
				case t.clean:
					cell.Verdict, cell.Text = string(control.VerdictClean), "clean"
				case t.common > 0:
					cell.Verdict, cell.Text = string(control.VerdictSame), "same"
				default:
					cell.Verdict, cell.Text = "apart", "no path in common"
				}
				cell.Diff = c.path + "/diff" + query("a", a.exact, "b", b.exact)
			}
			row.Cells = append(row.Cells, cell)
		}
		rows = append(rows, row)
	}
	return rows
}

// worth is the order of paths: those with conflicts first, those that one proposal alone has changed last.
var worth = map[control.Verdict]int{control.VerdictConflict: 0, control.VerdictClean: 1, control.VerdictSame: 2, "": 3}

// listPaths adds the page of the list of paths that begins with the path number first.
func (c *comparison) listPaths(names []string, first int, page *comparePage) {
	changed := make([]map[string]control.PathChange, len(c.sides))
	known := map[string]bool{}
	var all []control.SharedPath
	for _, s := range c.shared {
		if known[s.Path] = true; s.Verdict == control.VerdictConflict {
			page.Conflicts++
		}
	}
	all = append(all, c.shared...)
	page.Shared = len(all)
	for i, s := range c.sides {
		changed[i] = make(map[string]control.PathChange, len(s.Changes))
		for _, change := range s.Changes {
			if changed[i][change.Path] = change; !known[change.Path] {
				known[change.Path] = true // no other side has changed the path
				all = append(all, control.SharedPath{Path: change.Path})
			}
		}
	}
	page.Total = len(all)
	slices.SortFunc(all, func(a, b control.SharedPath) int {
		return cmp.Or(worth[a.Verdict]-worth[b.Verdict], strings.Compare(a.Path, b.Path))
	})
	show := c.r.FormValue("show")
	here := func(show string, from int) string {
		more := []string{"show", show}
		if from > 0 {
			more = append(more, "from", strconv.Itoa(from))
		}
		return c.path + "/compare" + query(append(pointsOf(names), more...)...)
	}
	if show != "shared" && show != "conflict" {
		show = ""
	}
	page.Views = []viewLink{{"All paths", here("", 0), show == ""}, {"Changed by two or more", here("shared", 0), show == "shared"},
		{"In conflict", here("conflict", 0), show == "conflict"}}
	switch show { // the paths are sorted by their verdicts
	case "shared":
		all = all[:page.Shared]
	case "conflict":
		all = all[:page.Conflicts]
	}
	page.Listed = len(all)
	if first > 0 {
		page.Before = here(show, max(0, first-pathsPage))
	}
	if first+pathsPage < len(all) {
		page.Next = here(show, first+pathsPage)
	}
	for _, at := range all[min(first, len(all)):min(first+pathsPage, len(all))] {
		page.Rows = append(page.Rows, c.pathRow(at, changed))
	}
}

// pathRow returns the row of a path.
func (c *comparison) pathRow(at control.SharedPath, changed []map[string]control.PathChange) pathRow {
	row := pathRow{Path: shown(at.Path), Verdict: at.Verdict, Text: string(at.Verdict)}
	clash := map[int]bool{}
	for _, pair := range at.Pairs {
		if pair.Verdict == control.VerdictConflict {
			row.Text += " " + letterOf(pair.A) + "–" + letterOf(pair.B)
			clash[pair.A], clash[pair.B] = true, true
		}
	}
	for i, s := range c.sides {
		cell := pathCell{Letter: letterOf(i), Clash: clash[i]}
		if change, ok := changed[i][at.Path]; ok {
			cell.Status = words[change.Status]
			cell.Counts = changeRow{Added: int(change.Added), Deleted: int(change.Removed), Binary: change.Added < 0}
			cell.Link = c.path + "/diff/file" + query("a", s.baseID(), "b", s.commit, "path", at.Path)
		}
		row.Cells = append(row.Cells, cell)
	}
	return row
}
