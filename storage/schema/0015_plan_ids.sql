-- The billingSubscriptionId of a device type. Plans that are there already take the id of their free tier.
ALTER TABLE monetization_plan ADD COLUMN id TEXT;
UPDATE monetization_plan SET id = (SELECT min(t.id) FROM monetization_tier AS t WHERE t.plan = monetization_plan.key AND t.type = 'free');
CREATE UNIQUE INDEX monetization_plan_by_id ON monetization_plan (id);
