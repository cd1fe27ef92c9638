package gate

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/merge"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session/approval"
)

// maxPeople is the maximum number of approved commits whose authors are read.
const maxPeople = 10_000

// person is an author or committer.
type person struct{ name, mail string }

func (p person) String() string { return fmt.Sprintf("%.100s <%.100s>", p.name, p.mail) }

// is reports whether a person is the user with a name, which can be an address. Both the name and the address, or the
// part of the address before the @, must be those of the user, because readers of the history take either for the
// person. The case of letters does not matter.
func (p person) is(actor string) bool {
	same := func(got string, names ...string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(got, name) })
	}
	name, _, isAddress := strings.Cut(actor, "@")
	if isAddress {
		return same(p.mail, actor, approval.Address(actor)) && same(p.name, actor, approval.Person(actor), name)
	}
	local, _, _ := strings.Cut(p.mail, "@")
	return same(p.name, actor, approval.Person(actor)) &&
		(same(local, actor, strings.ReplaceAll(actor, " ", ".")) || same(p.mail, approval.Address(actor)))
}

// made says who made a commit, and on what.
type made struct {
	parents           []string
	author, committer person
}

// git returns the repository without its replacements of objects.
func (j *judge) git() gitcmd.Repo {
	r := j.Git.In(j.Dir)
	r.Options = []string{"--no-replace-objects"}
	return r
}

// log reads commits. The result is empty if the repository lacks some of them.
func (j *judge) log(ctx context.Context, args ...string) (all []made, err error) {
	args = append([]string{"log", "--no-show-signature", "--encoding=UTF-8",
		"--format=tformat:%P%x00%an%x00%ae%x00%cn%x00%ce"}, args...)
	out, err := j.git().Output(ctx, "", append(args, "--")...)
	if gitcmd.Exited(err, 128) && ctx.Err() == nil {
		return nil, nil
	}
	for line := range strings.Lines(string(out)) {
		if f := strings.Split(strings.TrimSuffix(line, "\n"), "\x00"); len(f) == 5 {
			all = append(all, made{strings.Fields(f[0]), person{f[1], f[2]}, person{f[3], f[4]}})
		}
	}
	return all, err
}

// covers returns why an approval does not cover the commit that a branch gets, "" if it does. The tree of that commit
// is the approved one. An approval covers the commit that was reviewed with its ancestors, and one commit of the user
// who pushes that squashes the changes onto the base, or merges them. So no commit is said to be in the branch whose
// contents are not, and nobody is named who made nothing.
func (j *judge) covers(ctx context.Context, u records.RefUpdate, request approval.Record) (why string, err error) {
	approved, base := request.Subject.Commit, request.Subject.Base
	switch {
	case approved == "":
		return "names no commit, because an older version has made it: request the approval again", nil
	case u.New == approved:
		return "", nil
	}
	within, err := merge.IsAncestor(j.git().Runner(ctx), u.New, approved)
	switch {
	case within:
		return "", nil
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case err != nil && !gitcmd.Exited(err, 128): // 128: the repository lacks the approved commit
		return "", err
	}
	list, err := j.log(ctx, "--no-walk", u.New)
	if err != nil {
		return "", err
	}
	if base == "" || len(list) != 1 ||
		!slices.Equal(list[0].parents, []string{base}) && !slices.Equal(list[0].parents, []string{base, approved}) {
		return fmt.Sprintf("covers commit %.12s, or one commit that squashes it onto %.12s or merges it, and not commit %.12s",
			approved, base, u.New), nil
	}
	known, err := j.log(ctx, "--max-count="+strconv.Itoa(maxPeople), approved, "^"+base)
	if err != nil {
		return "", err
	}
	actor, c := Actor(j.Token), list[0]
	wrote := func(p person) bool {
		return p.is(actor) || slices.ContainsFunc(known, func(k made) bool { return p == k.author })
	}
	switch {
	case !wrote(c.author):
		return fmt.Sprintf("covers commits of other authors than %s, who is not %s who pushes commit %.12s", c.author,
			actor, u.New), nil
	// A token without an actor names no user whom the commit could name.
	case j.Token.Actor == "" && wrote(c.committer), c.committer.is(actor):
		return "", nil
	}
	return fmt.Sprintf("covers a squash or merge by the user who pushes it, and the committer of %.12s is %s, but the token is of %s: "+
		"set user.name to %[4]s and user.email to %[5]s", u.New, c.committer, actor, approval.Person(actor),
		approval.Address(actor)), nil
}
