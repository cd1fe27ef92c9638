package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/control/sessionlink"
	"github.com/artifactfs/artifactfs/server/comparing"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/server/replica"
	"github.com/artifactfs/artifactfs/session/proposals"
)

// comparisonInfo is the result of a comparison. Its fields have the same names as in the output of `session compare
// --json`.
type comparisonInfo struct {
	Base      *string              `json:"base"`
	Sides     []comparedInfo       `json:"sides"`
	Pairs     []pairInfo           `json:"pairs"`
	Shared    []control.SharedPath `json:"shared"`
	Truncated bool                 `json:"truncated"`
}

type comparedInfo struct {
	Name           string               `json:"name"`
	Session        *string              `json:"session"`
	State          string               `json:"state"`
	Checkpoint     *string              `json:"checkpoint"`
	Commit         string               `json:"commit"`
	Tree           string               `json:"tree"`
	Subject        string               `json:"subject"`
	Author         string               `json:"author"`
	Base           *string              `json:"base"`
	BaseCheckpoint *string              `json:"base_checkpoint"`
	BaseTree       string               `json:"base_tree"`
	Added          int64                `json:"added"`
	Modified       int64                `json:"modified"`
	Removed        int64                `json:"removed"`
	LinesAdded     int64                `json:"lines_added"`
	LinesRemoved   int64                `json:"lines_removed"`
	Changes        []control.PathChange `json:"changes"`
	Truncated      bool                 `json:"truncated"`
	Tests          testsInfo            `json:"tests"`
}

type testsInfo struct {
	Key     string  `json:"key"`
	Known   bool    `json:"known"`
	First   string  `json:"first_line"`
	Size    int64   `json:"size"`
	Actor   string  `json:"actor"`
	Session *string `json:"session"`
	Problem *string `json:"problem"`
}

type pairInfo struct {
	A         int      `json:"a"`
	B         int      `json:"b"`
	Conflicts []string `json:"conflicts"`
}

// compareProposals compares two to six proposals: their changes, conflicts between them, and their test results.
func compareProposals(c *call) error {
	q := c.query()
	names := comparing.Distinct(q.values["p"])
	switch {
	case len(names) < 2:
		q.refuse(invalid("p", "Too small: expected 2 or more different names"))
	case len(names) > comparing.MaxProposals:
		q.refuse(invalid("p", "Too big: expected at most %d names", comparing.MaxProposals))
	}
	if err := q.err(); err != nil {
		return err
	}
	return look(c, func(ctx context.Context) error {
		var made *comparing.Comparison
		err := use(ctx, c, c.of, func(dir *replica.Replica, g gitread.Repo) error {
			// The refs are read when the request has its place, because there can be many, and it may wait for a minute.
			all, err := c.a.o.Records.Repos.Refs(ctx, c.of.ID)
			if err != nil {
				return err
			}
			refs := make(map[string]string, len(all))
			for _, ref := range all {
				refs[ref.Name] = ref.ID
			}
			from, err := dir.Unpacked(ctx)
			if err != nil {
				return err
			}
			g.Dir = from.Dir
			made, err = comparing.Source{Git: g, Refs: from.With(refs), Thin: from.Thin, Merges: &c.a.merges,
				Now: c.a.o.Now()}.Compare(ctx, names)
			return comparisonFault(err)
		})
		if err != nil {
			return err
		}
		return c.send(http.StatusOK, showComparison(made), nil)
	})
}

// comparisonFault returns the fault of an error of a comparison. Errors that the request has not caused are returned
// unchanged.
func comparisonFault(err error) error {
	var none *comparing.NotFoundError
	var thin *comparing.ThinError
	switch {
	case errors.As(err, &none) && errors.Is(err, gitread.ErrAmbiguous):
		return &Fault{http.StatusNotFound, codeNotFound, fmt.Sprintf("proposal %.80q: %v", none.Name, gitread.ErrAmbiguous),
			""}
	case errors.As(err, &none):
		return &Fault{http.StatusNotFound, codeNotFound, fmt.Sprintf("the repository has no proposal %.80q", none.Name), ""}
	case errors.As(err, &thin), errors.Is(err, comparing.ErrLacksBase):
		return &Fault{http.StatusConflict, codeConflict, err.Error(), ""}
	}
	return err
}

func showComparison(c *comparing.Comparison) comparisonInfo {
	i := comparisonInfo{Pairs: []pairInfo{}, Shared: c.Shared}
	if c.Fork != "" {
		i.Base = optional(c.Fork)
	} else if !c.Several {
		i.Base = optional(c.Common)
	}
	if i.Shared == nil {
		i.Shared = []control.SharedPath{}
	}
	for _, s := range c.Sides {
		_, checkpoint := sessionlink.Split(s.Exact)
		if s.Session == "" {
			checkpoint = ""
		}
		i.Sides = append(i.Sides, comparedInfo{Name: s.Name, Session: optional(s.Session), State: string(s.Meta.State),
			Checkpoint: optional(checkpoint), Commit: s.Commit, Tree: s.Tree, Subject: s.Subject, Author: s.Author,
			Base:           optional(s.Base),
			BaseCheckpoint: optional(s.BaseCheckpoint), BaseTree: s.BaseTree, Added: s.Added, Modified: s.Modified,
			Removed:    s.Removed,
			LinesAdded: s.LinesAdded, LinesRemoved: s.LinesRemoved, Changes: s.Changes, Truncated: s.Truncated,
			Tests: testsInfo{s.Result.Key, s.Result.Known, s.Result.First, s.Result.Size, s.Result.Actor,
				optional(s.Result.Session),
				optional(string(s.Result.Problem))}})
		i.Truncated = i.Truncated || s.Truncated
	}
	for _, p := range c.Pairs {
		i.Pairs = append(i.Pairs, showPair(p))
	}
	return i
}

func showPair(p proposals.Pair) pairInfo {
	if p.Conflicts == nil {
		p.Conflicts = []string{}
	}
	return pairInfo{p.A, p.B, p.Conflicts}
}
