package main

import (
	"context"
	"errors"
	"strings"

	"github.com/artifactfs/artifactfs/integration/harness/gitea"
)

// forge starts a gitea server with a repository that contains the base. source is the directory that gitea.Start needs.
// If source is "", forge starts nothing and returns an empty carryPlace.
func (r *rig) forge(source string) (carryPlace, error) {
	if source == "" {
		return carryPlace{}, nil
	}
	ctx := context.Background()
	s, err := gitea.Start(ctx, source, r.path("forge"))
	if err != nil {
		return carryPlace{}, err
	}
	const name = "s"
	url := strings.Replace(s.Repo(gitea.User, name), "://", "://"+gitea.User+":"+s.Token+"@", 1)
	err = s.Create(ctx, name)
	if err == nil {
		_, err = r.sh(r.repo, "git push -q "+url+" main")
	}
	if err != nil {
		return carryPlace{}, errors.Join(err, s.Close())
	}
	return carryPlace{"gitea", url, s.Path(gitea.User, name), s.Close}, nil
}
