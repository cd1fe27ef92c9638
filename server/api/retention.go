package api

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/retention"
)

// maxRetention is the maximum size of the rules of a namespace in bytes.
const maxRetention = 64 << 10

// rulesOf returns the rules of the namespace in the path.
func rulesOf(c *call) (r retention.Rules, err error) {
	ctx, cancel := c.context()
	defer cancel()
	if _, err := c.a.o.Records.Namespaces.Get(ctx, c.params["namespace"]); err != nil {
		return r, found("Namespace", err)
	}
	r, err = c.a.o.Keeper.Rules(ctx, c.params["namespace"])
	return r, found("Retention", err)
}

// getRetention returns the rules of a namespace.
func getRetention(c *call) error {
	r, err := rulesOf(c)
	if err != nil {
		return err
	}
	return c.send(http.StatusOK, r, nil)
}

// readRules reads rules from the body of a request.
func readRules(c *call) (r retention.Rules, err error) {
	text, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, maxRetention))
	if err != nil {
		return r, err
	}
	if r, err = retention.Parse(text); errors.Is(err, retention.ErrRules) {
		err = &Fault{http.StatusBadRequest, codeInput, err.Error(), ""}
	}
	return r, err
}

// putRetention replaces the rules of a namespace.
func putRetention(c *call) error {
	r, err := readRules(c)
	if err != nil {
		return err
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	ctx, cancel := c.context()
	defer cancel()
	if err := c.a.o.Records.Retention.Set(ctx, c.params["namespace"], string(text), c.cause()); err != nil {
		return found("Namespace", err)
	}
	return c.send(http.StatusOK, r, nil)
}

// deleteRetention removes the rules of a namespace.
func deleteRetention(c *call) error {
	ctx, cancel := c.context()
	defer cancel()
	if err := c.a.o.Records.Retention.Set(ctx, c.params["namespace"], "", c.cause()); err != nil {
		return found("Namespace", err)
	}
	return c.send(http.StatusOK, struct {
		Namespace string `json:"namespace"`
	}{c.params["namespace"]}, nil)
}

// steps lists the steps of a plan or of a run.
type steps struct {
	Steps []retention.Step `json:"steps"`
	// Error is the reason why some due steps were not made; the next run tries them again.
	Error *string `json:"error"`
}

// planRetention returns which steps the rules of a namespace require for each session, and when. It changes nothing.
func planRetention(c *call) error {
	r, err := rulesOf(c)
	if err != nil {
		return err
	}
	ctx, leave, err := placed(c, records.Repo{Namespace: c.params["namespace"]})
	if err != nil {
		return err
	}
	defer leave()
	all, err := c.a.o.Keeper.Plan(ctx, c.params["namespace"], r)
	if err != nil {
		return err
	}
	if all == nil {
		all = []retention.Step{}
	}
	return c.send(http.StatusOK, steps{Steps: all}, nil)
}

// runRetention applies the rules of a namespace now, and returns the steps that it has made.
func runRetention(c *call) error {
	if _, err := rulesOf(c); err != nil {
		return err
	}
	ctx, leave, err := placed(c, records.Repo{Namespace: c.params["namespace"]})
	if err != nil {
		return err
	}
	defer leave()
	done, err := c.a.o.Keeper.Run(ctx, c.params["namespace"])
	if errors.Is(err, records.ErrUnavailable) {
		return err
	}
	answer := steps{Steps: done}
	if done == nil {
		answer.Steps = []retention.Step{}
	}
	if err != nil {
		text := err.Error()
		answer.Error = &text
	}
	return c.send(http.StatusOK, answer, nil)
}
