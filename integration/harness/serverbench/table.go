package main

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// table prints the results as rows of a Markdown table, each as soon as it is measured.
type table struct{ places int }

// head prints the header of the table.
func (t *table) head(places []string) {
	t.places = len(places)
	cells := append([]string{"measurement"}, places...)
	for _, p := range places[1:] {
		cells = append(cells, p+" / ours")
	}
	cells = append(cells, "goal", "load")
	t.print(cells)
	rule := make([]string, len(cells))
	for i := range rule {
		rule[i] = "---"
	}
	t.print(rule)
}

func (t *table) print(cells []string) { fmt.Println("| " + strings.Join(cells, " | ") + " |") }

// times prints a row with one duration for each server; a duration of 0 means that the measurement does not exist for
// this server. limit is the goal for artifactfs serve, 0 if there is none.
func (t *table) times(what string, all []time.Duration, limit time.Duration) {
	cells := []string{what}
	for _, d := range all {
		cells = append(cells, seconds(d))
	}
	for _, d := range all[1:] {
		cells = append(cells, ratio(d, all[0]))
	}
	goal := ""
	if limit > 0 {
		goal = fmt.Sprintf("<= %s%s", seconds(limit), missed(all[0] > limit))
	}
	t.print(append(cells, goal, load()))
}

// line prints a row with one text for each server. The first text is for artifactfs serve.
func (t *table) line(what, goal string, ok bool, texts ...string) {
	cells := append([]string{what}, texts...)
	for len(cells) < 2*t.places {
		cells = append(cells, "")
	}
	t.print(append(cells, goal+missed(!ok), load()))
}

func missed(is bool) string {
	if is {
		return " MISSED"
	}
	return ""
}

func ratio(theirs, ours time.Duration) string {
	if theirs == 0 || ours == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", float64(theirs)/float64(ours))
}

func seconds(d time.Duration) string {
	switch {
	case d == 0:
		return "-"
	case d < time.Second:
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}

// load returns the load average of the last minute.
func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	return first
}
