package ui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/control/sessionlink"
	"github.com/artifactfs/artifactfs/server/comparing"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/session"
)

const pathsPage = 200 // maximum number of paths on a page of a comparison

// comparePage shows up to comparing.MaxProposals proposals beside each other.
type comparePage struct {
	frame
	// name of the state to which all changes are relative, and the path of its page; "" if the proposals have several
	// bases
	Base, BaseTree string
	Proposals      []proposalRow
	Pairs          []pairRow
	Views          []viewLink
	Rows           []pathRow
	Total          int // number of changed paths
	Shared         int // number of paths that two or more proposals changed
	Conflicts      int // number of paths with conflicts
	Listed         int // number of paths in the selected view
	Truncated      bool
	Before, Next   string
	Exact          string // path of a page that always shows the present versions; "" if this page does so
	Commands       []command
}

// proposalRow is a proposal with its totals.
type proposalRow struct {
	Letter, Name     string
	Page, Tree, Diff string // paths of the pages of the session, its files, and its difference from the base
	// path of the page on which a merge of the session is confirmed; "" if the token does not allow a merge
	Adopt           string
	State           session.LifeState
	Subject, Author string
	control.ComparedSide
	Truncated bool
	Result    resultCell
}

// resultCell shows the test results of a proposal.
type resultCell struct {
	comparing.Result
	Size string // size of the value, as text for people; "" if it is not known
	Note string // reason why First is missing
}

// comparison contains the data for a comparePage.
type comparison struct {
	*place
	*comparing.Comparison
	refs map[string]string
}

// pairRow has the results of the merges of one proposal with each proposal.
type pairRow struct {
	Letter string
	Cells  []pairCell
}

// pairCell is the result of a merge of two proposals: a verdict, and the path of their difference. Verdict is "" if
// both are the same proposal, and "apart" if no path was changed by both.
type pairCell struct {
	With    string
	Verdict string
	Text    string
	Diff    string
}

// viewLink is a link that selects which paths are listed.
type viewLink struct {
	Name, Path string
	Chosen     bool
}

// pathRow is a path with the change of each proposal to it.
type pathRow struct {
	Path    string
	Verdict control.Verdict // verdict; "" if only one proposal has changed the path
	Text    string
	Cells   []pathCell
}

// pathCell is the change of one proposal to a path. Link is "" if the proposal has not changed the path.
type pathCell struct {
	Letter string
	Status string
	Counts changeRow
	Link   string
	Clash  bool
}

// comparePoints shows the comparison of the points that the request names.
func (p *place) comparePoints(ctx context.Context) error {
	names := comparing.Distinct(p.r.URL.Query()["p"])
	if len(names) < 2 || len(names) > comparing.MaxProposals {
		return &Problem{http.StatusBadRequest, "Which proposals?",
			fmt.Sprintf("Select two to %d sessions or branches to compare; you have selected %d.",
				comparing.MaxProposals, len(names))}
	}
	first, err := strconv.Atoi(cmp.Or(p.r.FormValue("from"), "0"))
	if err != nil || first < 0 {
		return missing("The comparison has no such page.")
	}
	page := comparePage{frame: p.frame("Compare "+number(len(names), "proposal", "proposals"), p.within()...)}
	c := &comparison{place: p}
	err = p.readRefs(ctx, func(g gitread.Repo, refs map[string]string) (err error) {
		c.refs = refs
		from := comparing.Source{Git: g, Refs: c.refs, Thin: p.thin, Merges: &p.u.merges, Now: p.u.o.Now()}
		c.Comparison, err = from.Compare(ctx, names)
		return p.comparisonProblem(err)
	})
	if err != nil {
		return err
	}
	switch {
	case c.Fork != "":
		page.Base, page.BaseTree = "checkpoint "+c.Fork+", from which all were forked", p.treePath(c.Fork, "")
	case c.Several:
	case c.Common == "":
		page.Base = "nothing: the proposals have no common history"
	default:
		page.Base, page.BaseTree = "commit "+short(c.Common), p.treePath(c.Common, "")
	}
	var exact, sessions []string
	for i, s := range c.Sides {
		page.Proposals = append(page.Proposals, c.proposalRow(i, s))
		page.Truncated = page.Truncated || s.Truncated
		exact = append(exact, "p", s.Exact)
		if s.Session != "" {
			sessions = append(sessions, s.Exact)
		}
	}
	if page.Exact = p.path + "/compare" + query(exact...); page.Exact == p.path+"/compare"+query(pointsOf(names)...) {
		page.Exact = ""
	}
	if len(sessions) == len(c.Sides) {
		page.Commands =
			[]command{{"Compare", "artifactfs session compare --session-remote " + control.ShellWord(p.remote()) + " " +
				strings.Join(sessions, " ")}}
	}
	page.Pairs = c.pairRows()
	c.listPaths(names, first, &page)
	return p.send(http.StatusOK, "compare.html", page)
}

// pointsOf returns the names and values of a query that selects points.
func pointsOf(names []string) (pairs []string) {
	for _, name := range names {
		pairs = append(pairs, "p", name)
	}
	return pairs
}

// letterOf returns the letter that stands for the proposal with the index i.
func letterOf(i int) string { return string(rune('A' + i)) }

func (c *comparison) proposalRow(i int, s *comparing.Side) proposalRow {
	row := proposalRow{Letter: letterOf(i), Name: shown(s.Name), Tree: c.treePath(s.Exact, ""), State: s.Meta.State,
		Subject: clip(s.Subject, maxMessages), Author: clip(s.Author, 80), ComparedSide: s.ComparedSide,
		Truncated: s.Truncated,
		Result:    resultOf(s.Result)}
	row.Diff = c.path + "/diff" + query("a", s.BaseTree, "b", s.Exact)
	if s.Session != "" {
		_, checkpoint := sessionlink.Split(s.Exact)
		row.Page = c.sessionPath(s.Session) + query("at", checkpoint)
		if c.doing(c.refs, s.Session).Merge {
			row.Adopt = c.sessionPath(s.Session) + "/merge"
		}
	}
	return row
}

// resultOf returns the test results of a proposal in a form that is safe to show.
func resultOf(r comparing.Result) resultCell {
	cell := resultCell{Result: r, Note: resultNotes[r.Problem]}
	cell.First, cell.Actor, cell.Session = line(r.First, 200), clip(r.Actor, 80), clip(r.Session, 80)
	if r.Problem != comparing.Damaged || r.Size > 0 {
		cell.Size = size(r.Size)
	}
	return cell
}

// resultNotes are sentences that are shown if test results cannot be shown.
var resultNotes = map[comparing.Problem]string{
	comparing.Damaged: "The cache entry is damaged.", comparing.TooLarge: "The value is too large for this page.",
	comparing.Binary: "The value is binary.",
}

// comparisonProblem returns the problem that the user sees after an error of a comparison. It returns other errors
// unchanged.
func (p *place) comparisonProblem(err error) error {
	var thin *comparing.ThinError
	switch {
	case errors.As(err, &thin):
		return &Problem{http.StatusConflict, "Cannot be compared",
			"The session " + thin.Session + " is thin, and the server cannot read it: " +
				thin.Reason + ". This command compares it: artifactfs session compare SESSION SESSION --session-remote " +
				p.remote()}
	case errors.Is(err, comparing.ErrLacksBase):
		return &Problem{http.StatusConflict, "Cannot be compared",
			"The repository does not have all objects of these proposals and of " +
				"their base; they are in the repository where the code comes from. The command artifactfs session compare reads both."}
	}
	return err
}

// pairRows returns the results of all merges as a square table.
func (c *comparison) pairRows() []pairRow {
	type tally struct {
		conflicts, common int
		clean             bool
	}
	found := map[[2]int]*tally{}
	for _, pair := range c.Pairs {
		found[[2]int{pair.A, pair.B}] = &tally{}
	}
	for _, path := range c.Shared {
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
	for i, a := range c.Sides {
		row := pairRow{Letter: letterOf(i)}
		for j, b := range c.Sides {
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
				cell.Diff = c.path + "/diff" + query("a", a.Exact, "b", b.Exact)
			}
			row.Cells = append(row.Cells, cell)
		}
		rows = append(rows, row)
	}
	return rows
}

// words are the words that are shown for git's letters for the status of a path.
var words = map[string]string{"A": "added", "D": "deleted", "M": "modified", "T": "type-changed"}

// verdictOrder is the sort order of paths: those with conflicts are first, those that only one proposal has changed are
// last.
var verdictOrder = map[control.Verdict]int{control.VerdictConflict: 0, control.VerdictClean: 1,
	control.VerdictSame: 2, "": 3}

// listPaths adds the list of paths to page, beginning with the path whose index is first.
func (c *comparison) listPaths(names []string, first int, page *comparePage) {
	changed := make([]map[string]control.PathChange, len(c.Sides))
	known := map[string]bool{}
	var all []control.SharedPath
	for _, s := range c.Shared {
		if known[s.Path] = true; s.Verdict == control.VerdictConflict {
			page.Conflicts++
		}
	}
	all = append(all, c.Shared...)
	page.Shared = len(all)
	for i, s := range c.Sides {
		changed[i] = make(map[string]control.PathChange, len(s.Changes))
		for _, change := range s.Changes {
			if changed[i][change.Path] = change; !known[change.Path] {
				known[change.Path] = true // only this side has changed the path
				all = append(all, control.SharedPath{Path: change.Path})
			}
		}
	}
	page.Total = len(all)
	slices.SortFunc(all, func(a, b control.SharedPath) int {
		return cmp.Or(verdictOrder[a.Verdict]-verdictOrder[b.Verdict], strings.Compare(a.Path, b.Path))
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
	page.Views = []viewLink{{"All paths", here("", 0), show == ""},
		{"Changed by two or more", here("shared", 0), show == "shared"},
		{"In conflict", here("conflict", 0), show == "conflict"}}
	switch show { // the paths are sorted by their verdicts, so those of a view are consecutive
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
	for i, s := range c.Sides {
		cell := pathCell{Letter: letterOf(i), Clash: clash[i]}
		if change, ok := changed[i][at.Path]; ok {
			cell.Status = words[change.Status]
			cell.Counts = changeRow{Added: int(change.Added), Deleted: int(change.Removed), Binary: change.Added < 0}
			cell.Link = c.path + "/diff/file" + query("a", s.BaseTree, "b", s.Commit, "path", at.Path)
		}
		row.Cells = append(row.Cells, cell)
	}
	return row
}
