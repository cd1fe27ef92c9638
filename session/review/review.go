// Package review has the rules of the review of a session that a host and a server share. It reads no repository itself.
package review
