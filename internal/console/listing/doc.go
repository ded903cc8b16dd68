// Package listing reads what internal/console puts into words: it lists objects of a cluster, and says in
// words why it cannot.
package listing
